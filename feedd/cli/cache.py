"""``feedd cache``: look into the cache directory, and clear it while no daemon owns it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedd.cache.inspect import remove, scan
from feedd.cli.flags import CacheDirFlag, ConfigFlag, Flags
from feedd.config.machine import existing_parent
from feedd.errors import NotFound
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.cache.report import CacheEntry
    from feedd.config.models import CacheConfig

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]

cache = typer.Typer(help="Look into the cache directory, and clear it.", no_args_is_help=True)


def _cache_config(config: ConfigFlag, cache_dir: CacheDirFlag) -> CacheConfig:
    return Flags(config=config, cache_dir=cache_dir).load().config.cache


def matches(entry: CacheEntry, pattern: str) -> bool:
    """Tell whether a URL is meant: by shell pattern, or by prefix where there is no ``*``, ``?`` or ``[``."""
    if any(character in pattern for character in "*?["):
        return fnmatchcase(entry.url, pattern)
    return entry.url.startswith(pattern)


def _bytes(entries: Sequence[CacheEntry]) -> int:
    return sum(entry.size_bytes for entry in entries)


@cache.command("ls", epilog="Example: feedd cache ls 's3://bucket/train/*' --json")
def list_entries(
    pattern: Annotated[str, typer.Argument(help="URL prefix or shell pattern; left out: everything.")] = "",
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """List the objects in the cache."""
    directory = _cache_config(config, cache_dir).dir
    entries = sorted((entry for entry in scan(directory) if matches(entry, pattern)), key=lambda entry: entry.url)
    if json_:
        fields = ("url", "etag", "size_bytes")
        typer.echo(json.dumps([{name: asdict(entry)[name] for name in fields} for entry in entries], indent=2))
        return
    table = Table(title=f"{len(entries)} objects, {format_size(_bytes(entries))} in {directory}", title_justify="left")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("etag", no_wrap=True)
    table.add_column("url", overflow="fold")
    for entry in entries:
        table.add_row(format_size(entry.size_bytes), escape(entry.etag[:12]), escape(entry.url))
    Console().print(table)


@cache.command(epilog="Example: feedd cache stat --cache-dir /mnt/nvme/feedd")
def stat(
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Show how full the cache is."""
    options = _cache_config(config, cache_dir)
    entries = list(scan(options.dir))
    disk = os.statvfs(existing_parent(options.dir))
    facts: dict[str, str | int] = {
        "directory": str(options.dir),
        "entries": len(entries),
        "object_bytes": _bytes(entries),
        "size_bytes": options.size,
        "free_reserve_bytes": options.free_reserve,
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }
    if json_:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        shown = format_size(value) if name.endswith("_bytes") and isinstance(value, int) else value
        typer.echo(f"{name.removesuffix('_bytes').replace('_', ' '):14} {shown}")


@cache.command("rm", epilog="Example: feedd cache rm 's3://bucket/old/*' --yes")
def remove_entries(
    pattern: Annotated[str | None, typer.Argument(help="URL prefix or shell pattern.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every object.")] = False,  # noqa: FBT002 - a flag is a flag
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,  # noqa: FBT002 - a flag is a flag
    config: ConfigFlag = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Remove objects from the cache. The originals are untouched; refused while a daemon owns the directory."""
    if (pattern is None) != everything:
        raise typer.BadParameter("expected either a pattern or --all")
    wanted = pattern or ""
    directory = _cache_config(config, cache_dir).dir
    found = [entry for entry in scan(directory) if matches(entry, wanted)]
    if not found:
        if everything:
            return
        raise NotFound("expected objects in the cache that match, got none", object=wanted, stage="cache")
    if not yes:
        typer.confirm(f"remove {len(found)} objects, {format_size(_bytes(found))}, from {directory}?", abort=True)
    removed = remove(directory, lambda entry: matches(entry, wanted))
    typer.echo(f"removed {len(removed)} objects, {format_size(_bytes(removed))}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(cache, name="cache")
