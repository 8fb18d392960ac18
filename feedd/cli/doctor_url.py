"""``feedd doctor URL``: measures without a trainer. A stand-in takes batches as fast as they come."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feedd.errors import BadConfig, BadRequest, FeeddError

if TYPE_CHECKING:
    from feedd.cli.flags import Flags
    from feedd.diagnosis.window import Window

CASES: Final = ("cached", "decoded", "local")
"""What ``--what-if`` understands."""
_COPY_BYTES_MIN: Final = 64 << 20
_COPY_BYTES_MAX: Final = 2 << 30
_COPY_TIMES: Final = 2
_BEGIN_S: Final = 60.0
_DAEMON_S: Final = 60.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """What to measure.

    Attributes:
        url: the data.
        fields: what to decode, as JSON; empty: the format's defaults.
        batch_size: samples of a batch.
        seconds: how long to measure.
        address: the daemon to use; empty: an own one with an empty cache.
        what_if: one of ``CASES``, or empty.
    """

    url: str
    fields: str
    batch_size: int
    seconds: float
    address: str = ""
    what_if: str = ""

    def check(self) -> None:
        """Check what can be checked without a request.

        Raises:
            BadConfig: the fields are not JSON, the case is unknown, or the client is not installed here.
        """
        if self.fields:
            try:
                found = json.loads(self.fields)
            except ValueError as error:
                raise BadConfig(
                    f"expected JSON, got {self.fields!r}: {error}", object="--fields", stage="cli"
                ) from None
            if not isinstance(found, dict):
                hint = """for example --fields '{"jpg": "image:224x224", "cls": "int"}'"""
                raise BadConfig(f"expected a JSON object, got {self.fields}", object="--fields", hint=hint, stage="cli")
        if self.what_if and self.what_if not in CASES:
            message = f"expected {', '.join(CASES[:-1])} or {CASES[-1]}, got {self.what_if!r}"
            raise BadConfig(message, object="--what-if", stage="cli")
        missing = [name for name in ("feedd_client", "torch") if importlib.util.find_spec(name) is None]
        if missing:
            raise BadConfig(
                f"feedd doctor URL needs {' and '.join(missing)}, which is not installed here",
                hint="pip install feedd-client torch, or measure a running job: feedd doctor",
                stage="cli",
            )


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """What the same batches would come at.

    Attributes:
        case: one of ``CASES``.
        now: batches per second as measured, opening included.
        best: batches per second in that case.
    """

    case: str
    now: float
    best: float

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``feedd doctor --json`` prints."""
        return {"case": self.case, "now": round(self.now, 3), "best": round(self.best, 3), "unit": "batches/s"}


async def measure_url(options: UrlOptions, flags: Flags) -> tuple[Window, HeadRoom | None]:
    """Return what a stand-in trainer met, and the head-room if it is asked for.

    Raises:
        FeeddError: the daemon or the stand-in failed.
    """
    async with AsyncExitStack() as stack:
        address = options.address or await _own_daemon(stack, flags)
        stand_in = await _StandIn.start(stack, options, address, options.url)
        window = await _window(stand_in, address, options)
        if not window.ranks and not window.listing:
            raise FeeddError(
                f"expected batches within {2 * options.seconds:g} s, got none",
                object=options.url,
                hint="raise --seconds; feedd peek URL shows what is in the data",
                stage="cli",
            )
        if not options.what_if:
            return window, None
        now = await stand_in.stop()
        if options.what_if == "cached":
            best = await stand_in.replay(options.seconds)
        else:
            best = await _best(stack, options, flags, address, window.fetch.read_bytes)
    return window, HeadRoom(options.what_if, now, best)


async def _window(stand_in: _StandIn, address: str, options: UrlOptions) -> Window:
    from feedd.config.types import is_unix  # noqa: PLC0415 - imported where it is needed, as gRPC
    from feedd.daemon.failures import single  # noqa: PLC0415 - see above
    from feedd.diagnosis.node_sampler import NodeSampler  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above

    seconds = options.seconds
    await stand_in.event("opens")
    try:
        async with asyncio.timeout(max(seconds, _BEGIN_S) if options.what_if else seconds):
            await stand_in.event("began")
    except TimeoutError:
        pass  # what it waits for is what is to be measured
    try:
        async with node_at(address) as node, asyncio.TaskGroup() as tasks:
            job = str(stand_in.pid) if stand_in.began else ""  # an open that lists has no session yet
            watch = tasks.create_task(stand_in.event("took"))  # raises what the stand-in meets
            window = await NodeSampler(node.daemons, job=job, local=is_unix(address)).measure(seconds)
            watch.cancel()
            return window
    except BaseExceptionGroup as group:
        raise single(group) from group


async def _best(stack: AsyncExitStack, options: UrlOptions, flags: Flags, address: str, read_bytes: int) -> float:
    """Return the rate of the first batches from decoded images, or from a local copy of the files."""
    url = options.url
    if options.what_if == "local":
        folder = Path(tempfile.mkdtemp(prefix="feedd-doctor-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        size_bytes = min(max(_COPY_BYTES_MIN, _COPY_TIMES * read_bytes), _COPY_BYTES_MAX)
        await copy_first(url, size_bytes, folder, flags)
        url = f"file://{folder}/"
    other = await _StandIn.start(stack, options, address, url, decoded=options.what_if == "decoded")
    await other.event("began")
    await asyncio.sleep(options.seconds)
    await other.stop()
    return await other.replay(options.seconds)


class _StandIn:
    """The stand-in trainer, a process that dies with this one."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self._url = url
        self.began = False

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, options: UrlOptions, address: str, url: str, *, decoded: bool = False
    ) -> _StandIn:
        """Start it."""
        from feedd.demo.processes import start  # noqa: PLC0415 - other uses of this command need no children

        arguments = ["--url", url, "--address", address, "--batch-size", str(options.batch_size)]
        arguments += ["--fields", options.fields] if options.fields else []
        arguments += ["--decoded"] if decoded else []
        return cls(await start(stack, "feedd_client.stand_in", arguments, dict(os.environ)), url)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def event(self, name: str) -> dict[str, Any]:
        """Return its next event of that name.

        Raises:
            FeeddError: it ended, or reported an error.
        """
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "error":
                raise FeeddError(event["message"], object=event["object"], hint=event["hint"], stage="client")
            self.began = self.began or event["event"] == "began"
            if event["event"] == name:
                return event
        await self._process.wait()
        raise FeeddError(f"the stand-in trainer ended with exit code {self._process.returncode}", object=self._url)

    async def stop(self) -> float:
        """Let it stop after the next batch; return how many it took in a second."""
        return _rate(await self._command("stop", "took"))

    async def replay(self, seconds: float) -> float:
        """Let it take the same batches again; return batches per second."""
        return _rate(await self._command(str(seconds), "replayed"))

    async def _command(self, line: str, answer: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()
        return await self.event(answer)


def _rate(event: dict[str, Any]) -> float:
    return float(event["batches"] / event["seconds"]) if event["seconds"] else 0.0


async def _own_daemon(stack: AsyncExitStack, flags: Flags) -> str:
    """Start a daemon with the user's configuration and an empty cache, on the disk of the configured one."""
    from feedd.demo.processes import failed, start  # noqa: PLC0415 - see _StandIn
    from feedd.serve.admin_client import daemon_at  # noqa: PLC0415 - see _window

    home = Path(tempfile.mkdtemp(prefix="feedd-doctor-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    address, log = f"unix://{home}/feedd.sock", home / "feedd.log"
    cache = _cache_folder(stack, flags, home)
    own = ["--listen", address, "--cache-dir", str(cache), "--status", "off", "--lanes", "1", "--log", "text"]
    process = await start(stack, "feedd", ["serve", *flags.arguments(), *own], dict(os.environ), log)
    try:
        async with asyncio.timeout(_DAEMON_S):
            while process.returncode is None:
                try:
                    async with daemon_at(address) as client:
                        await client.stats()
                except FeeddError:
                    await asyncio.sleep(_POLL_S)  # another process's readiness can only be polled
                else:
                    return address
    except TimeoutError as error:
        raise failed("the daemon", log, f"was not ready within {_DAEMON_S:.0f} s") from error
    raise failed("the daemon", log, "ended early")


def _cache_folder(stack: AsyncExitStack, flags: Flags, home: Path) -> Path:
    """Return a new folder beside the configured cache if it can be written there, else in ``home``."""
    parent = flags.load().config.cache.dir.parent
    if parent.is_dir() and os.access(parent, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="feedd-doctor-", dir=parent))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder
    return home / "cache"


async def copy_first(url: str, size_bytes: int, folder: Path, flags: Flags) -> None:
    """Copy the first objects below ``url``, of ``size_bytes`` or a little more, to ``folder``.

    Raises:
        BadRequest: the URL is no plain prefix.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """
    from feedd.catalog.sources import Sources  # noqa: PLC0415 - the SDK takes most of a second to import
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - see above
    from feedd.clock import SystemClock  # noqa: PLC0415 - see above
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above
    from feedd.fetch.pages import closing_pages  # noqa: PLC0415 - see above
    from feedd.flow.pools import LOCAL_FILES  # noqa: PLC0415 - see above
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see above
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - see above

    location = parse_url(url)
    if location.manifest or location.format or not url.endswith("/"):
        raise BadRequest(
            f"expected a prefix such as s3://bucket/train/ for --what-if local, got {url}", object="URL", stage="cli"
        )
    copied_bytes = 0
    options = source_options(flags.load().config)
    async with (
        Sources(options, NullRecorder(), SystemClock()) as sources,
        closing_pages(sources.buckets.of(location.root).list(location.key)) as pages,
    ):
        async for page in pages:
            for ref in page:
                if copied_bytes >= size_bytes:
                    return
                data = bytearray(ref.size_bytes)
                await sources.fetcher.fetch(ref, MemorySink(memoryview(data)))
                target = folder / ref.key.removeprefix(location.key)
                await LOCAL_FILES.run(_write, target, data)
                copied_bytes += ref.size_bytes


def _write(path: Path, data: bytearray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
