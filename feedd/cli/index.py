"""``feedd index``: count the samples of every shard once, for everybody who reads the data after that."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from feedd.cli.flags import CacheSizeFlag, ConfigFlag, Flags, SetFlag
from feedd.cli.report import EXIT_FAILED, say
from feedd.prepare.index import Counting, count, index_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedd.config import Config

_PER_WORKER = 4  # shards under way: some arrive while others are read
_TOLD_MAX = 8
_CACHE_SIZE = "16GiB"  # shards are read and dropped again: enough for those under way


def index(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/ or a folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file instead of beside the data.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say how many shards the index knows.")] = False,  # noqa: FBT002 - a flag is a flag
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,  # noqa: FBT002 - a flag is a flag
    cache_size: CacheSizeFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Count the samples of every shard and write them beside the data, as _feedd_index.json.

    With it the number of steps is known when training starts: all ranks have the same, len(dataset) works, and data can
    be split by samples. Shards the index knows already are not read again; broken off, it goes on where it was.
    """
    with tempfile.TemporaryDirectory(prefix="feedd-index-") as folder:
        flags = Flags(config=config, cache_dir=Path(folder), cache_size=cache_size or _CACHE_SIZE, set=set_)
        with _display(quiet=json_ or check) as tell:
            progress = _run(flags.load().config, url, out, tell, check=check)
    complete = progress.done_count == progress.shard_count
    if json_:
        facts = {
            "shards": progress.shard_count,
            "known": progress.done_count,
            "counted": progress.done_count - progress.known_count,
            "samples": progress.sample_count,
            "failed": [str(failure) for failure in progress.failures],
        }
        typer.echo(json.dumps(facts, indent=2))
    for failure in progress.failures[:_TOLD_MAX]:
        say(f"error: {failure}")
    where = out or index_url(url)
    known = f"{progress.done_count} of {progress.shard_count} shards known, {progress.sample_count} samples"
    say(f"{known}{'' if check else f', in {where}'}")
    if not complete:
        raise typer.Exit(EXIT_FAILED)


def _run(config: Config, url: str, out: Path | None, tell: Callable[[Counting], object], *, check: bool) -> Counting:
    # The SDK takes most of a second to import, which a wrong flag should not have to wait for.
    import uvloop  # noqa: PLC0415 - see above

    from feedd.clock import SystemClock  # noqa: PLC0415 - see above
    from feedd.daemon.failures import single  # noqa: PLC0415 - see above
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - see above
    from feedd.pipeline import open_pipeline  # noqa: PLC0415 - see above
    from feedd.pipeline.run import worker_count  # noqa: PLC0415 - see above

    target = index_url(url) if out is None else str(out.absolute())

    async def run() -> Counting:
        async with open_pipeline(config, NullRecorder(), SystemClock()) as pipeline:
            if check:
                listing = await pipeline.shelf.fresh((url,))
                known = listing.counts
                return Counting(
                    len(listing.refs), 0, len(known), done_count=len(known), sample_count=sum(known.values())
                )

            async def save(data: bytes) -> None:
                await pipeline.stages.sources.put(target, data)

            return await count(pipeline, url, save, tell, _PER_WORKER * worker_count(config))

    try:
        return uvloop.run(run())
    except BaseExceptionGroup as group:
        raise single(group) from group


@contextmanager
def _display(*, quiet: bool) -> Iterator[Callable[[Counting], object]]:
    """Show a bar on a terminal, nothing elsewhere."""
    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("listing", total=None)

        def tell(progress: Counting) -> None:
            what = f"{progress.done_count} of {progress.shard_count} shards, {progress.sample_count} samples"
            bar.update(task, description=what, total=progress.size_bytes, completed=progress.done_bytes)

        yield tell


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd index s3://bucket/train/")(index)
