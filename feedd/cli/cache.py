"""``feedd cache``: lists, clears and fills the cache, through the daemon if one owns the directory."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedd.cache.inspection import matches, remove, scan
from feedd.cache.report import CacheEntry
from feedd.cli import warm
from feedd.cli.error_report import EXIT_FAILED, say
from feedd.cli.flags import CacheDirFlag, ConfigFlag, Flags
from feedd.cli.running_daemon import AddressFlag, ask, chosen_address
from feedd.config.machine_defaults import existing_parent
from feedd.errors import NotFound
from feedd.lanes.lane import cache_dirs
from feedd.units import format_count, format_size
from feedd.warming import Amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.config import Config, Effective
    from feedd.lanes.node_client import NodeClient
    from feedd.serve.server_options import CacheState

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]

cache = typer.Typer(help="List and clear the cache, and fill it in advance.", no_args_is_help=True)


def _effective(config: ConfigFlag, cache_dir: CacheDirFlag) -> Effective:
    return Flags(config=config, cache_dir=cache_dir).load()


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


async def _look(daemon: NodeClient, state: CacheState) -> tuple[CacheState, list[CacheEntry]]:
    rows = await daemon.entries()
    return state, [CacheEntry(row.url, row.etag, row.size_bytes, row.pins, row.conversion) for row in rows]


@cache.command("ls", epilog="Example: feedd cache ls 's3://bucket/train/*' --json")
def list_entries(
    pattern: Annotated[str, typer.Argument(help="URL prefix or shell pattern; default: all objects.")] = "",
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """List the objects in the cache."""
    options = _effective(config, cache_dir)
    address = chosen_address(address, cache_dir)
    seen = ask(options.config, address, _look)
    directory = options.config.cache.dir if seen is None else seen[0].directory
    found = _scanned(options) if seen is None else seen[1]
    entries = sorted((entry for entry in found if matches(entry.url, pattern)), key=lambda entry: entry.url)
    if json_:
        fields = ("url", "etag", "size_bytes", "pins", "conversion")
        typer.echo(json.dumps([{name: asdict(entry)[name] for name in fields} for entry in entries], indent=2))
        return
    table = Table(
        title=f"{format_count(len(entries), 'object')}, {format_size(_bytes(entries))} in {directory}",
        title_justify="left",
    )
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("etag", no_wrap=True)
    table.add_column("url", overflow="fold")
    for entry in entries:
        made = f" ({entry.conversion})" if entry.conversion else ""
        table.add_row(format_size(entry.size_bytes), escape(entry.etag[:12]), escape(entry.url + made))
    Console().print(table)


@cache.command(epilog="Example: feedd cache stat --cache-dir /mnt/nvme/feedd")
def stat(
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: AddressFlag = None,
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Show the size of the cache and how much of it is used."""
    options = _effective(config, cache_dir)
    address = chosen_address(address, cache_dir)
    seen = ask(options.config, address, _look)
    facts = _facts_from_disk(options) if seen is None else _facts_from_daemon(*seen)
    if json_:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        shown = format_size(value) if name.endswith("_bytes") and isinstance(value, int) else value
        typer.echo(f"{_label(name):14} {shown}")


def _label(name: str) -> str:
    return "cached" if name == "object_bytes" else name.removesuffix("_bytes").replace("_", " ")


def _facts_from_disk(options: Effective) -> dict[str, str | int]:
    entries, config = list(_scanned(options)), options.config
    disk = os.statvfs(existing_parent(config.cache.dir))
    return {
        "directory": str(config.cache.dir),
        "entries": len(entries),
        "object_bytes": _bytes(entries),
        "size_bytes": config.cache.size,
        "free_reserve_bytes": config.cache.free_reserve,
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }


def _facts_from_daemon(state: CacheState, entries: Sequence[CacheEntry]) -> dict[str, str | int]:
    return {
        "directory": state.directory,
        "entries": len(entries),
        "object_bytes": _bytes(entries),
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
    options = _effective(config, cache_dir)
    address = chosen_address(address, cache_dir)
    seen = ask(options.config, address, _look)
    directory = options.config.cache.dir if seen is None else seen[0].directory
    found = [entry for entry in (_scanned(options) if seen is None else seen[1]) if matches(entry.url, wanted)]
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


def register(app: typer.Typer) -> None:
    """Add the ``cache`` commands."""
    warm.register(cache)
    app.add_typer(cache, name="cache")
