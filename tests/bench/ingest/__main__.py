"""``python -m tests.bench.ingest``: S3 to files of the cache, feedd alone and beside other clients of S3."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from feedd.units import parse_duration_s, parse_size
from tests.bench.ingest.contenders import how_to_install, line_up
from tests.bench.ingest.options import IngestOptions
from tests.bench.ingest.run import IngestRun
from tests.bench.ingest.tables import results
from tests.bench.machine import facts
from tests.bench.report import show

if TYPE_CHECKING:
    from tests.bench.ingest.contenders import Lineup
    from tests.bench.ingest.run import Section
    from tests.bench.report import Result

_FILE_WIDTH = 170
_SHARE = re.compile(r"(?P<percent>\d+(?:\.\d+)?)%(?:x(?P<factor>\d+(?:\.\d+)?))?")
_EXAMPLES = """Example: python -m tests.bench.ingest --peers --tls --json ingest.json

Example: python -m tests.bench.ingest --server radosgw --peers --tls

Example: python -m tests.bench.ingest s3://bucket/train/ --size 8GiB --peers

Example: python -m tests.bench.ingest --delayed 2%x50 --errors 5%"""

UrlArgument = Annotated[str, typer.Argument(help="Your objects: s3://bucket/prefix/. Left out: a server on loopback.")]
ServerOption = Annotated[
    Literal["fake", "radosgw"], typer.Option(help="Server on loopback: ours, or Ceph's radosgw, if it is installed.")
]
ArmOption = Annotated[list[str] | None, typer.Option(help="Only this row; may be given several times.")]
PeersFlag = Annotated[bool, typer.Option("--peers", help="Other S3 clients too, in turns with feedd.")]
RoundsOption = Annotated[int, typer.Option(min=1, max=100, help="Counted rounds; one more comes first.")]
TlsFlag = Annotated[bool, typer.Option("--tls", help="Over TLS too.")]
SizeOption = Annotated[str, typer.Option(help="Bytes of all objects.")]
ShardSizeOption = Annotated[str, typer.Option(help="Bytes of one object.")]
PartSizeOption = Annotated[str, typer.Option(help="Bytes of one ranged GET.")]
PartsOption = Annotated[int, typer.Option(min=1, max=1024, help="Ranged GETs at one time.")]
DelayedOption = Annotated[str, typer.Option(help="Share of GETs that wait longer, and how many times: 2%x50.")]
ErrorsOption = Annotated[str, typer.Option(help="Share of GETs answered 503: 5%.")]
ReceiversFlag = Annotated[
    bool, typer.Option("--receivers", help="Bare sockets too: threads with MSG_WAITALL, BufferedProtocol on uvloop.")
]
RecycledFlag = Annotated[bool, typer.Option("--recycled", help="Into a full cache and over old files, too.")]
RateOption = Annotated[
    str, typer.Option(help="With --delayed or --errors: bytes per second that one connection is sent; 0: no limit.")
]
LatencyOption = Annotated[str, typer.Option(help="With --delayed or --errors: before every first byte.")]
SeedOption = Annotated[int, typer.Option(help="Draws which GETs are delayed or refused.")]
PeersPythonOption = Annotated[Path | None, typer.Option(help="Interpreter that has the peers.", exists=True)]
FolderOption = Annotated[
    Path,
    typer.Option("--dir", help="Folder on tmpfs for objects and caches; mounted with huge=within_size it costs half."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write every round to this file.")]


def _duration_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _size(text: str, *, zero: bool = False) -> int:
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not size_bytes and not zero:
        raise typer.BadParameter("expected a size above 0")
    return size_bytes


def parse_share(text: str, *, factor: bool) -> tuple[float, float]:
    """Return share (0 to 1) and factor of ``2%x50`` or ``5%``; 50 where no factor is given.

    Raises:
        typer.BadParameter: neither.
    """
    match = _SHARE.fullmatch(text)
    if match is None or (match["factor"] and not factor) or float(match["percent"]) > 100:
        raise typer.BadParameter(f"expected {'2%x50' if factor else '5%'}, or the like, got {text!r}")
    return float(match["percent"]) / 100, float(match["factor"] or 50)


def ingest(
    url: UrlArgument = "",
    server: ServerOption = "fake",
    peers: PeersFlag = False,
    arm: ArmOption = None,
    rounds: RoundsOption = 5,
    tls: TlsFlag = False,
    size: SizeOption = "2GiB",
    shard_size: ShardSizeOption = "256MiB",
    part_size: PartSizeOption = "8MiB",
    parts_in_flight: PartsOption = 16,
    delayed: DelayedOption = "",
    errors: ErrorsOption = "",
    receivers: ReceiversFlag = False,
    recycled: RecycledFlag = False,
    latency: LatencyOption = "20ms",
    connection_rate: RateOption = "40MB",
    seed: SeedOption = 0,
    peers_python: PeersPythonOption = None,
    folder: FolderOption = Path("/dev/shm"),
    json_: JsonOption = None,
) -> None:
    """Fetch objects into the cache and tell CPU seconds per GB, GB/s and memory; nothing is left behind."""
    if url and (tls or delayed or errors):
        raise typer.BadParameter("--tls, --delayed and --errors are of our own server; leave them or the URL out")
    if server == "radosgw" and (url or delayed or errors):
        raise typer.BadParameter("--delayed and --errors are of our own server, and a URL of yours; leave them out")
    if tls and (delayed or errors):
        raise typer.BadParameter("--delayed and --errors are runs of their own, over plain HTTP; leave out --tls")
    delayed_share, delay_factor = parse_share(delayed, factor=True) if delayed else (0.0, 50.0)
    options = IngestOptions(
        folder=folder,
        url=url,
        server=server,
        round_count=rounds,
        peers=peers,
        peers_python=peers_python,
        arms=tuple(arm or ()),
        receivers=receivers,
        recycled=recycled,
        tls=tls,
        size_bytes=_size(size),
        shard_bytes=_size(shard_size),
        part_bytes=_size(part_size),
        parts_in_flight=parts_in_flight,
        delayed_share=delayed_share,
        delay_factor=delay_factor,
        error_share=parse_share(errors, factor=False)[0] if errors else 0.0,
        latency_s=_duration_s(latency),
        connection_bytes_s=_size(connection_rate, zero=True),
        seed=seed,
    )
    raise typer.Exit(run_ingest(options, json_))


def run_ingest(options: IngestOptions, json_path: Path | None) -> int:
    """Run, show, write; return the exit status: 1 where a contender failed, whatever the figures."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)  # tables are for reading, also where output goes to a file
    lineup = line_up(options)
    if lineup.missing:
        console.print(how_to_install(lineup), style="yellow", highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unwinds: servers end, files go
    begin_s = time.monotonic()
    sections = _with_bar(options, lineup, console)
    tables = results(sections)
    for table in tables:
        show(table, console, targets=False)
    console.print(f"\n{_facts(options)}; {time.monotonic() - begin_s:.0f} s", highlight=False)
    if json_path is not None:
        json_path.write_text(json.dumps(_document(options, lineup, tables), indent=1, default=str) + "\n")
    return 1 if any(outcome.failure for section in sections for outcome in section.outcomes) else 0


def _with_bar(options: IngestOptions, lineup: Lineup, console: Console) -> list[Section]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        section_count = (
            1 + options.tls if not options.faulty else 1 + bool(options.delayed_share) + bool(options.error_share)
        )
        turn_count = section_count * len(lineup.contenders) * (options.round_count + 1)
        task = progress.add_task("ingest", total=turn_count)
        run = IngestRun(options, lineup, lambda text: console.print(text, style="dim", highlight=False))
        return run.run(lambda: progress.advance(task))


def _facts(options: IngestOptions) -> str:
    machine = facts(None)
    return (
        f"{options.round_count} rounds in turns, medians with lowest and highest; {options.parts_in_flight} parts in"
        f" flight; pages of all files fresh unless called recycled; {machine['cores']} cores, {machine['cpu']},"
        f" kernel {machine['kernel']}, python {machine['python']}, load {machine['load_average_before']:.1f}"
    )


def _document(options: IngestOptions, lineup: Lineup, tables: list[Result]) -> dict[str, Any]:
    return {
        "options": asdict(options),
        "machine": facts(None),
        "peers": lineup.versions,
        "missing": lineup.missing,
        "tables": {table.name: table.as_json() for table in tables},
    }


def main() -> None:
    """Read the command line, measure."""
    app = typer.Typer(add_completion=False)
    app.command(epilog=_EXAMPLES)(ingest)
    app()


if __name__ == "__main__":
    main()
