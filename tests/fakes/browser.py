"""A headless Chromium for tests of pages, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

START_S: Final = 30.0
ANSWER_S: Final = 20.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """Return the path of a Chromium, or None if this machine has none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One page of the browser.

    Attributes:
        requests: URLs of everything that it has asked for.
        complaints: errors of its scripts, and what its content policy has blocked.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def read(self) -> None:
        """Take the browser's messages until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_S):
            said = await answer
        assert "error" not in said, (method, said)
        return dict(said["result"])

    async def open(self, url: str) -> None:
        """Load a page."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def look(self, script: str) -> Any:  # what the script returns
        """Return the value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, met: Callable[[Any], bool] = bool) -> Any:  # what the script returns
        """Wait until an expression has such a value; return it."""
        deadline_s = time.monotonic() + ANSWER_S
        while not met(value := await self.look(script)):
            assert time.monotonic() < deadline_s, (script, value, self.complaints)
            await asyncio.sleep(0.05)
        return value

    async def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        about = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and the colours that the user prefers."""
        mobile = width < 500
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def show(self, selector: str) -> None:
        """Scroll to an element, so that what is loaded when it is seen is loaded; then back."""
        await self.look(f"document.querySelector({selector!r}).scrollIntoView()")

    async def picture(self, *, whole: bool = False) -> bytes:
        """Return a PNG of the window, or of the whole page."""
        more: dict[str, Any] = {}
        if whole:
            content = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            more = {"clip": {"x": 0, "y": 0, "width": content["width"], "height": content["height"], "scale": 1}}
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **more)
        return base64.b64decode(found["data"])


@contextmanager
def browser(home: Path, program: str) -> Iterator[str]:
    """Run a Chromium whose files are in ``home``; yield the address of its protocol; end it in any case."""
    command = [program, *_FLAGS, f"--user-data-dir={home / 'profile'}", "about:blank"]
    with (home / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        port = home / "profile" / "DevToolsActivePort"
        deadline_s = time.monotonic() + START_S
        while not port.exists() or "\n" not in port.read_text():
            told = (home / "chromium.log").read_text()[-2000:]
            assert process.poll() is None, told
            assert time.monotonic() < deadline_s, told
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def tab(address: str) -> AsyncIterator[Page]:
    """Open a page in a running browser; yield it; close it."""
    async with aiohttp.ClientSession() as client:
        async with client.put(f"{address}/json/new?about:blank") as answer:
            about = await answer.json()
        async with client.ws_connect(about["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(page.read())
                try:
                    yield page
                finally:
                    reading.cancel()
        async with client.get(f"{address}/json/close/{about['id']}") as answer:
            await answer.read()
