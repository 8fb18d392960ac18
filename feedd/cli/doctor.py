"""``feedd doctor``: names the stage that holds a job up, or would, and what to turn.

With a URL, a stand-in for a trainer takes batches as fast as they come.
"""

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
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from feedd.cli.flags import ConfigFlag, Flags, JsonFlag, SetFlag, fields_of
from feedd.cli.processes import start, start_daemon
from feedd.cli.report import print_json, print_table
from feedd.cli.running import NodeFlag, chosen_address, daemon_address, open_stores
from feedd.config.types import is_unix
from feedd.errors import BadConfig, BadRequest, FeeddError, NotFound
from feedd.units import format_count, format_size

if TYPE_CHECKING:
    from feedd.diagnosis.finding import Diagnosis
    from feedd.diagnosis.window import Window

CASES: Final = ("cached", "decoded", "local")
"""What ``--what-if`` understands."""
_COPY_BYTES_MIN: Final = 64 << 20
_COPY_BYTES_MAX: Final = 2 << 30
_COPY_TIMES: Final = 2
_BEGIN_S: Final = 60.0

UrlArgument = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="Measure this data without a trainer; default: measure a running job."),
]
FieldsFlag = Annotated[
    str, typer.Option("--fields", metavar="JSON", help="With URL: what to decode, as fields= of FeedDataset.")
]
BatchSizeFlag = Annotated[int, typer.Option("--batch-size", min=1, help="With URL: samples of a batch.")]
WhatIfFlag = Annotated[
    str,
    typer.Option(
        "--what-if",
        metavar="CASE",
        help="With URL: take the same batches again with shards cached, images decoded, or from a local copy of the "
        "files: cached, decoded or local.",
    ),
]
JobFlag = Annotated[
    str,
    typer.Option(
        "--job", help="First digits of a session's id, a job's share= name or a trainer's process id; default: all."
    ),
]


def doctor(
    url: UrlArgument = None,
    fields: FieldsFlag = "",
    batch_size: BatchSizeFlag = 256,
    what_if: WhatIfFlag = "",
    job: JobFlag = "",
    seconds: Annotated[float, typer.Option("--seconds", min=2, max=3600, help="How long to measure.")] = 10.0,
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: NodeFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Measure a running job, and name the one stage that holds it up, with the evidence and what to turn.

    Run it while the job trains, as the job's user or as an administrator of the daemon. With a URL, no job is
    needed: a stand-in takes batches as fast as they come, from a daemon with an empty cache, or from the daemon at
    --address or $FEEDD_ADDRESS.
    """
    from feedd.diagnosis.diagnose import diagnose  # noqa: PLC0415 - as gRPC below

    flags, best = Flags(config=config, set=set_), dict[str, Any]()
    if url is None:
        _refuse({"--fields": fields, "--what-if": what_if})
        window = _of_job(daemon_address(address, flags.load().config), job, seconds)
    else:
        _refuse({"--job": job}, "no URL")
        options = UrlOptions(url, fields, batch_size, seconds, chosen_address(address, None) or "", what_if)
        options.check()
        window, best = asyncio.run(measure_url(options, flags))
    if json_:
        print_json(diagnose(window).as_json() | ({"what_if": best} if best else {}))
        return
    _show(diagnose(window), window)
    if best:
        _print(f"what if {best['case']}", f"{best['now']:,.1f} to {best['best']:,.1f} batches/s, measured")


def _refuse(given: dict[str, str], expected: str = "a URL") -> None:
    """Refuse options that mean nothing here.

    Raises:
        BadConfig: one of them is given.
    """
    for option, value in given.items():
        if value:
            message = f"expected {expected} with {option}"
            raise BadConfig(message, object=option, hint="see feedd doctor --help", stage="cli")


def _of_job(address: str, job: str, seconds: float) -> Window:
    """Return what happened in the next seconds to the trainers of a job.

    Raises:
        NotFound: there is no trainer.
    """
    from feedd.diagnosis.node import measure  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above

    async def run() -> Window:
        async with node_at(address) as node:
            return await measure(node.daemons, seconds, job=job, local=is_unix(address))

    window = asyncio.run(run())
    if not window.ranks and not window.listing:
        raise NotFound(
            "expected a trainer that takes batches, got none",
            object=job or address,
            hint="run feedd doctor while the job trains, or give it a URL",
            stage="cli",
        )
    return window


def _show(diagnosis: Diagnosis, window: Window) -> None:
    from feedd.diagnosis.finding import STAGES  # noqa: PLC0415 - see _of_job

    finding = diagnosis.finding
    ranks = format_count(len(window.ranks), "rank")
    if window.job_count > 1:
        ranks += f" of the job that waits the longest, of {window.job_count} jobs (--job chooses)"
    _print(diagnosis.about.title, f"({finding.verdict})")
    rows = [
        (one.what, _number(one.value, one.unit), _number(one.threshold, one.unit) if one.threshold else "-")
        for one in finding.evidence
    ]
    print_table(f"{window.seconds:.0f} s, {ranks}", ("measured", "value", "threshold"), rows)
    behind = f"{STAGES[diagnosis.behind]} ({diagnosis.behind})" if diagnosis.behind else ""
    for label, text in (("do  ", finding.advice), ("turn", diagnosis.knob), ("gain", diagnosis.gain), ("next", behind)):
        if text:
            _print(label, f" {text}")


def _print(label: str, text: str) -> None:
    Console().print(Text(label, "bold").append(f" {text}", "not bold"))


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.0%}"
    if unit in {"bytes", "bytes/s"}:
        return format_size(round(value)) + unit.removeprefix("bytes")
    return f"{value:.3g} {unit}"


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
        fields_of(self.fields)
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


async def measure_url(options: UrlOptions, flags: Flags) -> tuple[Window, dict[str, Any]]:
    """Return what a stand-in trainer met, and what the same batches would come at, if it is asked for.

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
            return window, {}
        now = await stand_in.stop()
        if options.what_if == "cached":
            best = await stand_in.replay(options.seconds)
        else:
            best = await _best(stack, options, flags, address, window.fetch.read_bytes)
    return window, {"case": options.what_if, "now": round(now, 3), "best": round(best, 3), "unit": "batches/s"}


async def _window(stand_in: _StandIn, address: str, options: UrlOptions) -> Window:
    from feedd.config.types import is_unix  # noqa: PLC0415 - imported where it is needed, as gRPC
    from feedd.daemon.failures import single  # noqa: PLC0415 - see above
    from feedd.diagnosis.node import measure  # noqa: PLC0415 - gRPC takes a third of a second to import
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
            window = await measure(node.daemons, seconds, job=job, local=is_unix(address))
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
    home = Path(tempfile.mkdtemp(prefix="feedd-doctor-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    address, cache = f"unix://{home}/feedd.sock", _cache_folder(stack, flags, home)
    own = [*flags.arguments(), "--cache-dir", str(cache), "--lanes", "1"]
    await start_daemon(stack, "the daemon", address, own, os.environ, home / "feedd.log")
    return address


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
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - slow to import
    from feedd.fetch.pages import closing_pages  # noqa: PLC0415 - see above
    from feedd.flow.pools import LOCAL_FILES  # noqa: PLC0415 - see above
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see above

    location = parse_url(url)
    if location.manifest or location.format or not url.endswith("/"):
        raise BadRequest(
            f"expected a prefix such as s3://bucket/train/ for --what-if local, got {url}", object="URL", stage="cli"
        )
    copied_bytes = 0
    async with (
        open_stores(flags.load().config) as sources,
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


def register(app: typer.Typer) -> None:
    """Add the ``doctor`` command."""
    app.command(epilog="Example: feedd doctor --seconds 30")(doctor)
