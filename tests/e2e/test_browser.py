"""The web page in a headless Chromium: sizes, colours, keys, proxies, and nothing from elsewhere.

``STORE_PICTURES=1 python -m pytest -m nightly tests/e2e/test_browser.py`` stores the pictures of the documents anew.
"""

from __future__ import annotations

import io
import os
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from aiohttp import web
from PIL import Image

from feedd.wire import feedd_pb2 as pb
from tests.fakes.browser import browser, chromium, tab
from tests.fakes.pages import FakeNode, busy_look, serving_page
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.fakes.browser import Page

CHROMIUM: Final = chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

TOKEN = "t0ken"
PREFIX = "/nodes/7/feedd"
IMAGES = ROOT / "docs" / "images"
PHONE, WIDE = (390, 844), (1280, 900)
_RANKS = "document.querySelectorAll('#ranks .rank').length"
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_LOOKS: Final = 90
# Contrast as WCAG 2 defines it, of each text with the nearest background that is opaque.
_CONTRASTS = """
(() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const [R, G, B] = [r, g, b].map((one) => ((one /= 255) <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("h1, h2, h3, p, span, b, small, code, button, a, time")) {
    if (!element.textContent.trim() || !element.offsetParent || element.closest("svg")) continue;
    const [one, other] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = element.tagName + "." + element.className + " " + element.textContent.trim().slice(0, 20);
    if (ratio < 4.5) found[name] = Math.round(ratio * 100) / 100;
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[str]:
    """One browser for all tests of this file."""
    assert CHROMIUM is not None
    folder = TemporaryDirectory(prefix="fd-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as home, browser(Path(home), CHROMIUM) as address:
        yield address


@pytest.fixture
async def page(chrome: str) -> AsyncIterator[Page]:
    """A page of the browser."""
    async with tab(chrome) as found:
        yield found


@asynccontextmanager
async def _served(node: FakeNode, looks: int = 5) -> AsyncIterator[str]:
    """Serve the page of a node that was looked at some times; yield the URL of its page."""
    async with serving_page(node, TOKEN) as address, aiohttp.ClientSession() as client:
        for _ in range(looks):
            async with client.get(f"http://{address}/view.json") as answer:
                assert answer.status == 200
            node.wait()
        yield f"http://{address}/{TOKEN}/"


@asynccontextmanager
async def _proxied(url: str) -> AsyncIterator[str]:
    """Serve the page below a path of another server, as a reverse proxy does."""
    upstream = url.rsplit("/", 2)[0]

    async def forward(request: web.Request) -> web.Response:
        path = request.path_qs.removeprefix(PREFIX)
        async with client.get(f"{upstream}{path}", allow_redirects=False) as answer:
            headers = {name: answer.headers[name] for name in ("Content-Type", "Location") if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    app = web.Application()
    app.router.add_get(f"{PREFIX}/{{path:.*}}", forward)
    runner = web.AppRunner(app)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}{PREFIX}/{TOKEN}"  # without its slash, so that the redirect is seen, too


def _stored(name: str, picture: bytes) -> None:
    """Store a picture of the documents, if that is asked for."""
    if "STORE_PICTURES" not in os.environ:
        return
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(IMAGES / name, optimize=True)


async def test_it_fits_every_window(page: Page) -> None:
    """64 ranks and two jobs on a desk and on a phone, light and dark: nothing is cut off, all text has contrast."""
    node = FakeNode(look_at=lambda at_s: busy_look(at_s, 64))
    async with _served(node, 12) as url:
        await page.size(*WIDE)
        await page.open(url)
        await page.until(_RANKS, lambda count: count == 65)
        grounds = set()
        for size in (WIDE, PHONE):
            for dark in (False, True):
                await page.size(*size, dark=dark)
                assert await page.look(_OVERFLOW) == 0, size
                assert await page.look(_CONTRASTS) == {}, (size, dark)
                grounds.add(await page.look("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
        assert await page.look("document.querySelectorAll('#path li').length") == 6
        assert await page.look(
            "[...document.querySelectorAll('#path li.limits h3')].map((one) => one.textContent)"
        ) == ["decode"]
        assert "decoding: all cores are busy" in await page.look("document.querySelector('#verdict').textContent")
        assert page.complaints == []


async def test_nothing_comes_from_elsewhere(page: Page) -> None:
    """Behind a proxy that adds a path, the page and its pictures load, and every request is below that path."""
    async with _served(FakeNode()) as url, _proxied(url) as proxied:
        await page.size(*WIDE)
        await page.open(proxied)
        await page.until(_RANKS, lambda count: count == 2)
        await page.show("#samples")
        await page.until("document.querySelector('.shot img')?.naturalWidth", lambda width: width == 40)
        await page.until("document.querySelector('.shot pre')?.textContent", lambda text: text and "alert" in text)
        asked = [one for one in page.requests if not one.startswith("blob:")]
        assert len(asked) > 6
        assert [one for one in asked if not one.startswith(proxied)] == []
        assert page.complaints == []


async def test_names_from_data_are_text(page: Page) -> None:
    """Keys, reasons, URLs and log lines that look like HTML are shown as they are, and run nothing."""
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    sample = pb.BadSample(id=2, url=f"s3://{evil}", key=evil, field=evil, reason=evil, outcome=evil)
    node = FakeNode(log=[pb.LogEntry(text=evil, level="error", count=1)], bad_samples=[sample])
    async with _served(node) as url:
        await page.size(*WIDE)
        await page.open(url)
        await page.until("document.querySelector('#samples b')?.textContent", lambda text: text and evil in text)
        await page.look("document.querySelector('#samples button').click()")
        assert evil in await page.look("document.querySelector('#sample').textContent")
        assert await page.look("document.querySelectorAll('main img, main script, dialog script').length") == 0
        assert "owned" not in await page.look("document.title")
        assert page.complaints == []


async def test_keys_do_what_they_do_in_the_terminal(page: Page) -> None:
    """Sort, filter, pause, theme and help by keys; every control can be reached and has a name."""
    node = FakeNode(look_at=lambda at_s: busy_look(at_s, 8))
    async with _served(node, 6) as url:
        await page.size(*WIDE)
        await page.open(url)
        await page.until(_RANKS, lambda count: count == 9)
        first = "document.querySelector('#ranks .rank b').textContent"
        assert await page.look(first) == "0"
        await page.press("s")
        assert await page.look("document.querySelector('#sorts [aria-pressed=true]').dataset.sort") == "wait"
        assert await page.look(first) == "3"  # waits the longest
        await page.press("/")
        for letter in "eval":
            await page.press(letter)
        assert await page.look(_RANKS) == 1
        await page.press("Escape")
        assert await page.look(_RANKS) == 9
        await page.press("p")
        assert await page.look("document.querySelector('#live').textContent") == "paused"
        count = node.look_count
        node.wait()
        await page.look("new Promise((done) => setTimeout(done, 1300))")
        assert node.look_count == count, "a page that is paused asks nothing"
        await page.press("p")
        await page.press("t")
        await page.press("t")
        assert await page.look("document.documentElement.dataset.theme") == "dark"
        await page.press("?")
        assert await page.look("document.querySelector('#help').open")
        await page.press("Escape")
        assert not await page.look("document.querySelector('#help').open")
        names = (
            "[...document.querySelectorAll('button, input, a')].map((one) => one.textContent.trim() || one.ariaLabel)"
        )
        assert None not in await page.look(names)
        assert page.complaints == []


async def test_a_daemon_that_goes_is_told(page: Page) -> None:
    """A page whose daemon does not answer says so, keeps what it shows, and goes on when the daemon is back."""
    node = FakeNode()
    async with _served(node) as url:
        await page.size(*PHONE)
        await page.open(url)
        live = "document.querySelector('#live')?.textContent"
        await page.until(live, lambda text: text == "live")
        node.is_down = True
        node.wait()
        await page.until(live, lambda text: "no daemon answers" in text)
        assert await page.look(_RANKS) == 2
        node.is_down = False
        await page.until(live, lambda text: text == "live")


@pytest.mark.nightly
async def test_pictures_for_the_documents(page: Page) -> None:
    """One rank on a phone and eight on a desk, as the documents show them."""
    views: dict[str, tuple[int, tuple[int, int], bool]] = {
        "page-light.png": (8, WIDE, False),
        "page-dark.png": (8, WIDE, True),
        "page-phone.png": (1, PHONE, True),
    }
    for name, (ranks, size, dark) in views.items():
        node = FakeNode(look_at=partial(busy_look, ranks=ranks))
        async with _served(node, _LOOKS) as url:
            await page.size(*size, dark=dark)
            await page.open(url)
            await page.until(f"{_RANKS} === {ranks + 1}")
            await page.show("#samples")
            await page.until("document.querySelector('.shot img')?.naturalWidth > 0")
            await page.show("header")
            picture = await page.picture(whole=True)
            assert len(picture) > 10_000
            _stored(name, picture)


def test_the_pictures_are_small() -> None:
    """Pictures of the documents are there, and none is larger than 150 KB."""
    sizes: dict[str, Any] = {path.name: path.stat().st_size for path in IMAGES.glob("page-*.png")}
    assert sizes.keys() == {"page-light.png", "page-dark.png", "page-phone.png"}
    assert max(sizes.values()) < 150_000
