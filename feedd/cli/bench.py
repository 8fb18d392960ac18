"""``feedd bench ingest URL``: measures how fast objects reach the cache, with the current settings."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.access import EVERYTHING
from feedd.cli.flags import ConfigFlag, Flags, JsonFlag, SetFlag, size_of
from feedd.cli.report import print_json, print_table
from feedd.cli.running import open_stores, run_async
from feedd.errors import BadConfig, BadRequest
from feedd.metrics import SOURCE_RETRIES, SOURCE_SECONDS
from feedd.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.sources import Sources
    from feedd.config import Config
    from feedd.observe.recorder import PrometheusRecorder
    from feedd.values import ObjectRef

_MARGIN_BYTES = 64 * MIB  # space for the cache's own files

bench = typer.Typer(
    help="Measure a stage of the daemon on this machine. The only stage is [bold]ingest[/], from store to cache.",
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True)
class Round:
    """Measurements of one round.

    Attributes:
        wall_s: seconds from the first request to the last byte in its file.
        cpu_s: CPU seconds of this process in that time, over all threads.
        request_count: number of requests, retries included.
        retry_count: number of retries.
        request_s: mean seconds of a request, body included.
    """

    size_bytes: int
    wall_s: float
    cpu_s: float
    request_count: int
    retry_count: int
    request_s: float


@bench.callback()
def _stages() -> None:
    """Make ``ingest`` a subcommand although it is the only one."""


@bench.command(epilog="Example: feedd bench ingest s3://bucket/train/ --size 8GiB --set fetch.parts_in_flight=64")
def ingest(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/, objects, or a folder.")],
    size: Annotated[str, typer.Option(help="Fetch whole objects until this many bytes are reached.")] = "2GiB",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Number of rounds.")] = 3,
    folder: Annotated[Path, typer.Option("--dir", help="Folder for a cache that is deleted afterwards.")] = Path(
        "/dev/shm"  # noqa: S108 - the tmpfs of every Linux; the cache gets a new folder in it
    ),
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Fetch objects into an empty cache, and print GB/s, CPU seconds per GB and the mean time of a request."""
    size_bytes = size_of(size, "--size")
    loaded = Flags(config=config, set=set_).load().config
    found = _run(url, size_bytes, rounds, folder, loaded)
    if json_:
        print_json({"url": url, "rounds": [asdict(one) for one in found]})
    else:
        _show(url, found, loaded)


def _run(url: str, size_bytes: int, round_count: int, folder: Path, config: Config) -> list[Round]:
    from feedd.observe.recorder import PrometheusRecorder  # noqa: PLC0415 - of this command only

    async def run() -> list[Round]:
        recorder = PrometheusRecorder()
        async with open_stores(config, recorder) as sources:
            refs = _first(await sources.resolve([url], EVERYTHING), size_bytes, url)
            _check_space(folder, sum(ref.size_bytes for ref in refs))
            return [await _one_round(sources, refs, folder, recorder) for _ in range(round_count)]

    return run_async(run())


def _first(refs: Sequence[ObjectRef], size_bytes: int, url: str) -> list[ObjectRef]:
    """Return the first objects that together have at least ``size_bytes``, or all.

    Raises:
        BadRequest: all objects are empty.
    """
    found, total_bytes = [], 0
    for ref in refs:
        if total_bytes >= size_bytes:
            break
        found.append(ref)
        total_bytes += ref.size_bytes
    if not total_bytes:
        raise BadRequest(f"there are no objects below {url}, or all are empty", stage="bench")
    return found


def _check_space(folder: Path, size_bytes: int) -> None:
    """Check that a folder exists and has enough space.

    Raises:
        BadConfig: the folder is missing or has too little space.
    """
    if not folder.is_dir():
        raise BadConfig(f"expected a folder, got {folder}", hint="specify one with --dir", stage="bench")
    needed, free = size_bytes + _MARGIN_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise BadConfig(
            f"expected {format_size(needed)} free in {folder}, got {format_size(free)}",
            hint="choose a smaller --size, or another --dir",
            stage="bench",
        )


async def _one_round(sources: Sources, refs: list[ObjectRef], folder: Path, recorder: PrometheusRecorder) -> Round:
    from feedd.cache.cache import Cache  # noqa: PLC0415 - as above
    from feedd.cache.options import CacheOptions  # noqa: PLC0415 - as above
    from feedd.clock import SystemClock  # noqa: PLC0415 - as above

    size_bytes = sum(ref.size_bytes for ref in refs)
    with tempfile.TemporaryDirectory(dir=folder, prefix="feedd-bench-") as home:
        options = CacheOptions(Path(home), size_bytes=2 * size_bytes + _MARGIN_BYTES, free_reserve_bytes=0)
        async with Cache(options, sources.fetcher, recorder, SystemClock()) as cache:
            before, cpu_s, begin_s = _requests(recorder), time.process_time(), time.perf_counter()
            pins = await cache.acquire(refs)
            wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
            pins.release()
    count, retries, seconds = (new - old for new, old in zip(_requests(recorder), before, strict=True))
    return Round(size_bytes, wall_s, cpu_s, int(count), int(retries), seconds / max(count, 1))


def _requests(recorder: PrometheusRecorder) -> tuple[float, float, float]:
    """Return the number of requests for data, the number of retries, and the total seconds of the requests."""
    count = retries = seconds = 0.0
    for sample in recorder.samples():
        if sample.name == f"{SOURCE_SECONDS.name}_count" and sample.labels["op"] == "read":
            count += sample.value
        elif sample.name == f"{SOURCE_SECONDS.name}_sum" and sample.labels["op"] == "read":
            seconds += sample.value
        elif sample.name == SOURCE_RETRIES.name:
            retries += sample.value
    return count, retries, seconds


def _show(url: str, rounds: Sequence[Round], config: Config) -> None:
    fetch = config.fetch
    part_size = fetch.part_size if isinstance(fetch.part_size, str) else format_size(fetch.part_size)
    figures = [
        (one.size_bytes / 1e9 / one.wall_s, one.cpu_s / (one.size_bytes / 1e9), one.request_s * 1e3) for one in rounds
    ]

    def row(name: str, figures: Sequence[float], *counts: int | str) -> tuple[str, ...]:
        rate, cpu, request_ms = figures
        return name, f"{rate:.2f}", f"{cpu:.2f}", *map(str, counts), f"{request_ms:.0f} ms"

    rows: list[tuple[str, ...] | None] = [
        row(str(number), figures[number - 1], one.request_count, one.retry_count)
        for number, one in enumerate(rounds, start=1)
    ]
    print_table(
        f"{url} to the cache: {format_size(rounds[0].size_bytes)} a round",
        (">round", ">GB/s", ">CPU s/GB", ">requests", ">sent again", ">mean request"),
        [*rows, None, row("median", [statistics.median(column) for column in zip(*figures, strict=True)], "", "")],
        caption=f"fetch.parts_in_flight {fetch.parts_in_flight}, fetch.part_size {part_size}",
    )


def register(app: typer.Typer) -> None:
    """Add the ``bench`` commands."""
    app.add_typer(bench, name="bench")
