"""``feedd pack``: writes small objects into shards, once, for all later readers of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn

from feedd.cli.flags import ConfigFlag, EngineFlag, Flags, JsonFlag, PartFlag, SetFlag, size_of
from feedd.cli.report import EXIT_FAILED, bar, log_without_notices, print_json, say, say_notices
from feedd.cli.running import open_stores, run_stoppable
from feedd.dataset.shard_part import WHOLE, ShardPart
from feedd.notices import notices_of
from feedd.pack.pack_options import SHARD_BYTES_LEAST, SHARD_BYTES_MOST, PackOptions
from feedd.pack.shard_writers import FORMATS
from feedd.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.pack.pack_run import Packing

_SIDE_MAX = 16384


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of the command."""

    options: PackOptions
    target: str
    part: ShardPart
    engine: str


def pack(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="s3://bucket/prefix/ or a folder of small objects.")],
    target: Annotated[str, typer.Argument(metavar="DESTINATION", help="s3://bucket/prefix/ or a folder, empty.")],
    format_: Annotated[str, typer.Option("--format", help=f"Format of the shards: {', '.join(FORMATS)}.")],
    shard_size: Annotated[str, typer.Option("--shard-size", help="Wanted size of a shard, 1MiB to 1GiB.")] = "64MiB",
    resize: Annotated[
        int | None, typer.Option("--resize", help="Reduce larger images to this length of their shorter side.")
    ] = None,
    quality: Annotated[int, typer.Option("--quality", help="Quality of the reduced JPEGs, 1 to 100.")] = 90,
    seed: Annotated[int | None, typer.Option("--seed", help="Shuffle the samples; else they stay in order.")] = None,
    labels: Annotated[
        str, typer.Option("--labels", help="folder: the first folder is the class. none, or auto: decided by the data.")
    ] = "auto",
    engine: EngineFlag = "local",
    part: PartFlag = None,
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Write small objects into shards of nearly equal size, with a manifest of their digests.

    The first run freezes the source: it writes which versions of which objects go into which shard. Shard I is then the
    same bytes, whoever writes it. A stopped run continues where it was. Parts may run at the same time on any machines;
    the last one writes the manifest, _feedd_pack.json. Standard output lists the shards as sha256sum does.
    """
    options = _options(source, format_, shard_size, resize, quality, seed, labels)
    mine = WHOLE if part is None else ShardPart.parse(part)
    flags = Flags(config=config, set=set_)
    flags.load()
    log_without_notices()
    with bar(MofNCompleteColumn(), quiet=json_) as update:

        def report(progress: Packing) -> None:
            update(description="shards", total=progress.mine_count, completed=progress.done_count)

        progress, stopped = _run(flags, _Job(options, target, mine, engine), report)
    _conclude(progress, target, json_=json_, stopped=stopped)


def _options(
    source: str, format_: str, shard_size: str, resize: int | None, quality: int, seed: int | None, labels: str
) -> PackOptions:
    """Check the flags."""
    from feedd.pack.pack_run import normal_source  # noqa: PLC0415 - see run_stoppable

    if format_ not in FORMATS:
        raise typer.BadParameter(f"expected one of {', '.join(FORMATS)}, got {format_!r}", param_hint="--format")
    shard_bytes = size_of(shard_size, "--shard-size", SHARD_BYTES_LEAST, SHARD_BYTES_MOST)
    if resize is not None and not 1 <= resize <= _SIDE_MAX:
        raise typer.BadParameter(f"expected 1 to {_SIDE_MAX} pixels, got {resize}", param_hint="--resize")
    if not 1 <= quality <= 100:
        raise typer.BadParameter(f"expected 1 to 100, got {quality}", param_hint="--quality")
    if seed is not None and not 0 <= seed < 1 << 63:
        raise typer.BadParameter(f"expected 0 or more, got {seed}", param_hint="--seed")
    if labels not in {"auto", "folder", "none"}:
        raise typer.BadParameter(f"expected auto, folder or none, got {labels!r}", param_hint="--labels")
    return PackOptions(normal_source(source), format_, shard_bytes, resize, quality, seed, labels)  # type: ignore[arg-type]  # checked above


def _run(flags: Flags, job: _Job, report: Callable[[Packing], object]) -> tuple[Packing, bool]:
    """Return the progress, and whether a signal stopped the run."""
    return run_stoppable(lambda requests: _pack(flags.load().config, job, report, requests))


async def _pack(
    config: Config, job: _Job, report: Callable[[Packing], object], requests: StopRequests
) -> tuple[Packing, bool]:
    from feedd.daemon.cut_short import ended_by  # noqa: PLC0415 - see run_stoppable
    from feedd.pack.pack_run import PackRun  # noqa: PLC0415 - see run_stoppable

    whole = False
    async with open_stores(config) as sources:
        run = PackRun(sources, job.options, job.target, report)
        async with ended_by(requests.drain):
            frozen = await run.open()
            if job.engine == "ray":
                from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see run_stoppable
                from feedd.pack.ray_engine import RayJob, make_on_ray  # noqa: PLC0415 - an extra

                await make_on_ray(run, frozen, job.part, RayJob(source_options(config), run.url, frozen.digest))
            else:
                await run.make(frozen, job.part)
            await run.finish(frozen)
            whole = True
    return run.progress, not whole


def _conclude(progress: Packing, target: str, *, json_: bool, stopped: bool) -> None:
    """Print the result; exit with 1 if a signal stopped the run."""
    say_notices(notices_of(progress.passed_over.reasons))
    facts = {
        "shards": progress.shard_count,
        "part": progress.mine_count,
        "done": progress.done_count,
        "bytes": progress.size_bytes,
        "stopped": stopped,
        "manifest": progress.manifest or None,
    }
    if json_:
        print_json(facts)
    else:
        for one in progress.manifest.get("shards", ()):
            typer.echo(f"{one['sha256']}  {one['name']}")
    mine = f"{progress.done_count} of {progress.mine_count} shards"
    if stopped:
        say(f"stopped: {mine} are written; run the command again to continue")
        raise typer.Exit(EXIT_FAILED)
    if progress.manifest:
        samples = format_count(progress.manifest["samples"], "sample")
        say(f"{format_count(progress.shard_count, 'shard')}, {samples}, in {target}")
    else:
        there = f"{progress.present_count} of {progress.shard_count} shards are there"
        say(f"{mine} of this part are written; {there}. The last part writes the manifest")


def register(app: typer.Typer) -> None:
    """Add the ``pack`` command."""
    app.command(epilog="Example: feedd pack s3://bucket/images/ s3://bucket/shards/ --format tar")(pack)
