"""``feedd cache warm``: fetches a node's objects into the cache in advance."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.cli.error_report import EXIT_FAILED, say
from feedd.cli.flags import CacheDirFlag, CacheSizeFlag, ConfigFlag, Flags, SetFlag
from feedd.cli.running_daemon import AddressFlag, chosen_address, owner_of
from feedd.cli.stoppable import run_async
from feedd.cli.warm_display import Display, display
from feedd.dataset.sharding import check_mode
from feedd.lanes.lane import Lane, lane_config
from feedd.lanes.lane_choice import serving_daemons
from feedd.units import format_count, format_size
from feedd.warming import WarmSpec

if TYPE_CHECKING:
    from feedd.config import Config
    from feedd.warming import WarmProgress


def warm(
    urls: Annotated[
        list[str],
        typer.Argument(metavar="URL", help="s3://bucket/prefix/, objects, manifest+s3://… or augmented+s3://…"),
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=65536, help="Number of nodes that share the data.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option("--node-rank", min=0, help="The node whose assignment to fetch, as in feedd plan.")
    ] = None,
    sharding: Annotated[str, typer.Option("--sharding", help="key, size or replicated.")] = "key",
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME=RECIPE",
            help="As in fields=: of Parquet and the like, only these columns; of large files of tokens, these spans.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="Trainers of this node. With fewer than lanes, not all lanes are warmed."),
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="If not all objects fit, fetch those that fit.")] = False,  # noqa: FBT002 - a flag is a flag
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
    cache_size: CacheSizeFlag = None,
    set_: SetFlag = None,
) -> None:
    """Fetch objects into the cache in advance, while there is room; no cached object is evicted for them.

    The daemon that owns the cache fetches them, or this command if no daemon runs. Objects already in the cache stay.
    Failed objects are listed, and the others are still fetched. Ctrl-C stops the command and keeps complete objects.

    Of columnar data a session reads only the columns of its fields=: name the same columns with --field.
    """
    if node_rank is None and nodes > 1:
        raise typer.BadParameter("expected --node-rank with --nodes, got none")
    rank = node_rank or 0
    if rank >= nodes:
        raise typer.BadParameter(f"expected --node-rank below --nodes {nodes}, got {rank}")
    check_mode(sharding)
    options = Flags(config=config, cache_dir=cache_dir, cache_size=cache_size, set=set_).load().config
    spec = WarmSpec(tuple(urls), nodes, rank, sharding, fit, tuple(map(_named, field or ())))
    stopped = False
    with display(sys.stderr, quiet=json_) as shown:
        try:
            _run(options, chosen_address(address, cache_dir), spec, ranks, shown)
        except KeyboardInterrupt:
            stopped = True
    if json_:
        typer.echo(json.dumps(shown.facts(), indent=2))
    _conclude(shown, spec, stopped=stopped)


def _named(text: str) -> tuple[str, str]:
    """Return the name and the recipe of a field."""
    name, equals, recipe = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"expected --field NAME=RECIPE, got {text!r}")
    return name, recipe


def _run(config: Config, address: str | None, spec: WarmSpec, ranks: int | None, shown: Display) -> None:
    async def run() -> None:
        async with owner_of(config, address) as owner:
            if owner is not None:
                await owner[0].warm(spec, ranks, shown.report)
                return
        await _warm_directories(config, spec, ranks, shown)

    run_async(run())


async def _warm_directories(config: Config, spec: WarmSpec, ranks: int | None, shown: Display) -> None:
    """Warm the cache directory, or those of all lanes, without a daemon."""
    from feedd.clock import SystemClock  # noqa: PLC0415 - slow to import
    from feedd.daemon.warm_up import open_warmer  # noqa: PLC0415 - slow to import
    from feedd.lanes.node_client import warm_lanes  # noqa: PLC0415 - slow to import
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - slow to import

    async with AsyncExitStack() as stack:
        warms = []
        for lane in serving_daemons(ranks or config.lanes, config.lanes, spec.urls):
            mine = config if config.lanes == 1 else lane_config(config, Lane(lane, config.lanes))
            warmer = await stack.enter_async_context(open_warmer(mine, NullRecorder(), SystemClock()))
            warms.append(warmer.warm)
        await warm_lanes(spec, warms, shown.report)


def _conclude(shown: Display, spec: WarmSpec, *, stopped: bool) -> None:
    """Print the result; exit with 1 unless all requested objects are in the cache."""
    progress = shown.progress
    if progress is None:  # stopped before the listing was complete
        say("stopped")
        raise typer.Exit(EXIT_FAILED)
    say(_summary(progress))
    if stopped:
        say("stopped; fetched objects stay in the cache")
    if progress.left_out.object_count:
        objects = format_count(progress.left_out.object_count, "object")
        room = f"{objects}, {format_size(progress.left_out.size_bytes)}, found no room"
        say(room if spec.fit else f"{room}: other data uses the cache too; raise cache.size, or pass --fit")
    short = progress.left_out.object_count and not spec.fit
    if stopped or short or progress.failed.object_count:
        raise typer.Exit(EXIT_FAILED)


def _summary(progress: WarmProgress) -> str:
    parts = [
        f"{amount.object_count} {name} ({format_size(amount.size_bytes)})"
        for name, amount in (("warmed", progress.warmed), ("there before", progress.present))
    ]
    if progress.failed.object_count:
        parts.append(f"{progress.failed.object_count} failed")
    return f"{format_count(progress.total.object_count, 'object')}: {', '.join(parts)}"


def register(cache: typer.Typer) -> None:
    """Add the ``warm`` command."""
    cache.command(epilog="Example: feedd cache warm s3://bucket/train/ --nodes 8 --node-rank 3")(warm)
