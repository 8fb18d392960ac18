"""``feedd cache``: lists, clears and fills the cache, through the daemon if one owns the directory."""

from __future__ import annotations

import itertools
import os
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.cache.inspection import matches, remove, scan
from feedd.cache.report import CacheEntry
from feedd.cli.flags import CacheDirFlag, CacheSizeFlag, ConfigFlag, Flags, JsonFlag, SetFlag
from feedd.cli.report import EXIT_FAILED, error_facts, meter, print_json, print_table, say
from feedd.cli.running import AddressFlag, ask, chosen_address, owner_of, run_async
from feedd.config.machine_defaults import existing_parent
from feedd.dataset.sharding import check_mode
from feedd.errors import NotFound
from feedd.lanes.lane import Lane, cache_dirs, lane_config
from feedd.lanes.lane_choice import serving_daemons
from feedd.units import format_count, format_size
from feedd.warming import Amount, WarmSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from feedd.cli.report import Meter
    from feedd.config import Config, Effective
    from feedd.errors import FeeddError
    from feedd.lanes.node_client import NodeClient
    from feedd.serve.server_options import CacheState
    from feedd.warming import WarmProgress

    Report = Callable[[WarmProgress, FeeddError | None], None]

cache = typer.Typer(help="List and clear the cache, and fill it in advance.", no_args_is_help=True)


def _bytes(entries: Iterable[CacheEntry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _scanned(options: Effective) -> Iterable[CacheEntry]:
    """Return the entries in the configured directory.

    Raises:
        NotFound: the default directory does not exist, so the user most likely means another directory.
    """
    directory = options.config.cache.dir
    if options.origins["cache.dir"] == "default" and not directory.exists():
        hint = "specify the daemon with --address or FEEDD_ADDRESS, or its directory with --cache-dir"
        raise NotFound("expected a cache directory, got none", object=str(directory), hint=hint, stage="cache")
    return itertools.chain.from_iterable(map(scan, cache_dirs(directory)))


def _seen(options: Effective, address: str | None) -> tuple[CacheState | None, Path | str, Iterable[CacheEntry]]:
    """Return the state of the cache, its directory and its entries; without a daemon there is no state."""

    async def look(daemon: NodeClient, state: CacheState) -> tuple[CacheState, list[CacheEntry]]:
        rows = await daemon.entries()
        return state, [CacheEntry(row.url, row.etag, row.size_bytes, row.pins, row.conversion) for row in rows]

    found = ask(options.config, address, look)
    if found is None:
        return None, options.config.cache.dir, _scanned(options)
    return found[0], found[0].directory, found[1]


@cache.command("ls", epilog="Example: feedd cache ls 's3://bucket/train/*' --json")
def list_entries(
    pattern: Annotated[str, typer.Argument(help="URL prefix or shell pattern; default: all objects.")] = "",
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """List the objects in the cache."""
    _, directory, found = _seen(Flags(config=config, cache_dir=cache_dir).load(), chosen_address(address, cache_dir))
    entries = sorted((entry for entry in found if matches(entry.url, pattern)), key=lambda entry: entry.url)
    if json_:
        print_json([asdict(entry) for entry in entries])
        return
    print_table(
        f"{format_count(len(entries), 'object')}, {format_size(_bytes(entries))} in {directory}",
        (">size", "|etag", "url"),
        (
            (format_size(one.size_bytes), one.etag[:12], one.url + (f" ({one.conversion})" if one.conversion else ""))
            for one in entries
        ),
    )


@cache.command(epilog="Example: feedd cache stat --cache-dir /mnt/nvme/feedd")
def stat(
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Show the size of the cache and how much of it is used."""
    options = Flags(config=config, cache_dir=cache_dir).load()
    state, directory, found = _seen(options, chosen_address(address, cache_dir))
    entries = list(found)
    facts: dict[str, str | int] = {
        "directory": str(directory),
        "entries": len(entries),
        "object_bytes": _bytes(entries),
    }
    facts |= _room_on_disk(options.config) if state is None else _room_of_daemon(state)
    if json_:
        print_json(facts)
        return
    for name, value in facts.items():
        shown = format_size(value) if name.endswith("_bytes") and isinstance(value, int) else value
        typer.echo(f"{_label(name):14} {shown}")


def _label(name: str) -> str:
    return "cached" if name == "object_bytes" else name.removesuffix("_bytes").replace("_", " ")


def _room_on_disk(config: Config) -> dict[str, int]:
    disk = os.statvfs(existing_parent(config.cache.dir))
    return {
        "size_bytes": config.cache.size,
        "free_reserve_bytes": config.cache.free_reserve,
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }


def _room_of_daemon(state: CacheState) -> dict[str, int]:
    return {
        "size_bytes": state.limit_bytes,
        "free_reserve_bytes": state.free_reserve_bytes,
        "committed_bytes": state.committed_bytes,
        "reserved_bytes": state.reserved_bytes,
        "pins": state.pin_count,
    }


@cache.command("rm", epilog="Example: feedd cache rm 's3://bucket/old/*' --yes")
def remove_entries(
    pattern: Annotated[str | None, typer.Argument(help="URL prefix or shell pattern.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every object.")] = False,  # noqa: FBT002 - a flag is a flag
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Remove objects from the cache that no session uses. The originals in the store stay."""
    if (pattern is None) != everything:
        raise typer.BadParameter("expected either a pattern or --all")
    wanted = pattern or ""
    options = Flags(config=config, cache_dir=cache_dir).load()
    address = chosen_address(address, cache_dir)
    _, directory, entries = _seen(options, address)
    found = [entry for entry in entries if matches(entry.url, wanted)]
    if not found:
        if everything:
            return
        raise NotFound("expected objects in the cache that match, got none", object=wanted, stage="cache")
    if not yes:
        typer.confirm(
            f"remove {format_count(len(found), 'object')}, {format_size(_bytes(found))}, from {directory}?", abort=True
        )
    removed, in_use = _remove(options.config, address, wanted)
    typer.echo(f"removed {format_count(removed.object_count, 'object')}, {format_size(removed.size_bytes)}")
    if in_use.object_count:
        say(
            f"{format_count(in_use.object_count, 'object')}, {format_size(in_use.size_bytes)}, are in use and were left"
        )
        raise typer.Exit(EXIT_FAILED)


def _remove(config: Config, address: str | None, pattern: str) -> tuple[Amount, Amount]:
    """Remove through the daemon that owns the cache; without one, remove under the directory's lock."""
    done = ask(config, address, lambda daemon, _: daemon.remove(pattern))
    if done is not None:
        return done
    gone = [one for path in cache_dirs(config.cache.dir) for one in remove(path, lambda one: matches(one.url, pattern))]
    return Amount(len(gone), _bytes(gone)), Amount()


@cache.command(epilog="Example: feedd cache warm s3://bucket/train/ --nodes 8 --node-rank 3")
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
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
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
    with meter("objects", quiet=json_) as shown:
        warming = _Warming(shown)
        try:
            _run(options, chosen_address(address, cache_dir), spec, ranks, warming.report)
        except KeyboardInterrupt:
            stopped = True
    if json_:
        print_json(warming.facts())
    _conclude(warming.progress, spec, stopped=stopped)


class _Warming:
    """How far the command is.

    Attributes:
        progress: the latest progress; None before the listing is complete.
        failures: one error per object that could not be fetched.
    """

    def __init__(self, shown: Meter) -> None:
        self.progress: WarmProgress | None = None
        self.failures: list[FeeddError] = []
        self._meter = shown

    def report(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        """Keep and show the progress and the failure."""
        self.progress = progress
        if failure is not None:
            self.failures.append(failure)
            self._meter.error(failure)
        settled = progress.present, progress.warmed, progress.left_out, progress.failed
        done = sum(one.object_count for one in settled), sum(one.size_bytes for one in settled)
        self._meter.show("", done, (progress.total.object_count, progress.total.size_bytes))

    def facts(self) -> dict[str, object]:
        """Return progress and errors for ``--json``."""
        if self.progress is None:
            return {}
        amounts = {name: getattr(self.progress, name) for name in ("total", "present", "warmed", "left_out", "failed")}
        facts = {name: {"objects": one.object_count, "bytes": one.size_bytes} for name, one in amounts.items()}
        return facts | {"errors": error_facts(self.failures)}


def _named(text: str) -> tuple[str, str]:
    """Return the name and the recipe of a field."""
    name, equals, recipe = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"expected --field NAME=RECIPE, got {text!r}")
    return name, recipe


def _run(config: Config, address: str | None, spec: WarmSpec, ranks: int | None, report: Report) -> None:
    async def run() -> None:
        async with owner_of(config, address) as owner:
            if owner is not None:
                await owner[0].warm(spec, ranks, report)
                return
        await _warm_directories(config, spec, ranks, report)

    run_async(run())


async def _warm_directories(config: Config, spec: WarmSpec, ranks: int | None, report: Report) -> None:
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
        await warm_lanes(spec, warms, report)


def _conclude(progress: WarmProgress | None, spec: WarmSpec, *, stopped: bool) -> None:
    """Print the result; exit with 1 unless all requested objects are in the cache."""
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


def register(app: typer.Typer) -> None:
    """Add the ``cache`` commands."""
    app.add_typer(cache, name="cache")
