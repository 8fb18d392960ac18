"""Flags that several commands share."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.config import Effective, find_file, load
from feedd.config.types import UNIX_PREFIX
from feedd.errors import BadConfig
from feedd.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.channels.job import Cluster

_ENGINES = ("local", "ray")
_PANEL = "Configuration: flag, else FEEDD_… variable, else TOML file, else default"

ConfigFlag = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file; else $FEEDD_CONFIG, else /etc/feedd/feedd.toml.", rich_help_panel=_PANEL),
]
ListenFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        help="Address for trainers: unix:///path.sock or host:port. May be repeated.",
        rich_help_panel=_PANEL,
    ),
]
CacheDirFlag = Annotated[Path | None, typer.Option("--cache-dir", help="Directory for shards.", rich_help_panel=_PANEL)]
CacheSizeFlag = Annotated[
    str | None, typer.Option("--cache-size", help="Maximum disk space of the cache: 800GiB.", rich_help_panel=_PANEL)
]
StatusFlag = Annotated[
    str | None, typer.Option("--status", help="Address of the status page and metrics, or off.", rich_help_panel=_PANEL)
]
WorkersFlag = Annotated[
    str | None, typer.Option("--workers", help="Number of decode workers, or auto.", rich_help_panel=_PANEL)
]
LanesFlag = Annotated[
    str | None,
    typer.Option("--lanes", help="Number of daemons that share this node, or auto.", rich_help_panel=_PANEL),
]
AutotuneFlag = Annotated[
    bool | None,
    typer.Option(
        "--autotune/--no-autotune",
        help="Adapt the numbers of workers and requests to demand, or keep them at their maximum.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
LogFlag = Annotated[
    str | None, typer.Option("--log", help="json, text, or auto: text on a terminal.", rich_help_panel=_PANEL)
]
LogLevelFlag = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error.", rich_help_panel=_PANEL)
]
SetFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any option by its name: cache.free_reserve=5GiB.", rich_help_panel=_PANEL
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PartFlag = Annotated[
    str | None, typer.Option("--part", metavar="I/N", help="Do only part I of N, from 0 to N - 1; see below.")
]


def _engine(name: str) -> str:
    if name not in _ENGINES:
        raise typer.BadParameter(f"expected {' or '.join(_ENGINES)}, got {name!r}")
    return name


EngineFlag = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local: this process. ray: Ray tasks, on the cluster of $RAY_ADDRESS.",
        callback=_engine,
    ),
]


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that the user gave; None for each other flag."""

    config: Path | None = None
    listen: list[str] | None = None
    cache_dir: Path | None = None
    cache_size: str | None = None
    status: str | None = None
    workers: str | None = None
    log: str | None = None
    log_level: str | None = None
    set: list[str] | None = None
    lanes: str | None = None
    autotune: bool | None = None

    def load(self, unsaid: Mapping[str, tuple[object, str]] | None = None) -> Effective:
        """Merge the flags with environment and file.

        Args:
            unsaid: defaults, each with its origin, for options that the user has not set.

        Raises:
            ConfigProblems: with all problems of the configuration.
        """
        env = dict(os.environ)
        return load({**self._given(), **(unsaid or {})}, env, find_file(self.config, env))

    def arguments(self) -> list[str]:
        """Return the flags as a command line, for another process of this program."""
        plain = {
            "--config": self.config and str(self.config.absolute()),
            "--cache-dir": self.cache_dir and str(self.cache_dir.absolute()),
            "--cache-size": self.cache_size,
            "--status": self.status,
            "--workers": self.workers,
            "--lanes": self.lanes,
            "--log": self.log,
            "--log-level": self.log_level,
        }
        switches = [] if self.autotune is None else ["--autotune" if self.autotune else "--no-autotune"]
        pairs = [(name, value) for name, value in plain.items() if value]
        pairs += [("--listen", address) for address in self.listen or ()] + [("--set", one) for one in self.set or ()]
        return switches + [part for pair in pairs for part in pair]

    def _given(self) -> dict[str, tuple[object, str]]:
        given: dict[str, tuple[object, str]] = {}
        for text in self.set or []:
            name, equals, value = text.partition("=")
            if not equals:
                raise typer.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint="--set")
            given[name.strip()] = (_parse(value.strip()), "flag --set")
        plain: dict[str, tuple[object, str]] = {
            "listen": ([_absolute(address) for address in self.listen or []] or None, "flag --listen"),
            "cache.dir": (str(self.cache_dir.absolute()) if self.cache_dir else None, "flag --cache-dir"),
            "cache.size": (self.cache_size, "flag --cache-size"),
            "status": (self.status, "flag --status"),
            "decode.workers": (self.workers, "flag --workers"),
            "lanes": (self.lanes, "flag --lanes"),
            "autotune": (self.autotune, "flag --autotune" if self.autotune else "flag --no-autotune"),
            "log.format": (self.log, "flag --log"),
            "log.level": (self.log_level, "flag --log-level"),
        }
        return given | {name: pair for name, pair in plain.items() if pair[0] is not None}


def _absolute(address: str) -> str:
    """Make a socket path relative to the current directory absolute: ``unix://./feedd.sock``."""
    path = address.removeprefix(UNIX_PREFIX)
    return f"{UNIX_PREFIX}{Path(path).absolute()}" if path != address and path.startswith("./") else address


def _parse(text: str) -> object:
    """Parse a value as TOML if possible (lists, numbers), else keep it as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def cluster_of(nodes: int | None, node_rank: int | None) -> Cluster:
    """Return the nodes that ``--nodes`` and ``--node-rank`` name; at least one of them is given.

    Raises:
        typer.BadParameter: only one of them is given, and the other does not follow.
    """
    if nodes is None or (node_rank is None and nodes > 1):
        raise typer.BadParameter("expected --nodes and --node-rank together, got one of them")
    from feedd.channels.job import Cluster  # noqa: PLC0415 - of two commands only

    return Cluster.numbered(nodes, node_rank or 0)


def size_of(text: str, flag: str, least_bytes: int = 1, most_bytes: int | None = None) -> int:
    """Return the bytes that a flag names.

    Raises:
        BadConfig: the text is no size, or none between the bounds.
    """
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise BadConfig(str(error), object=flag, stage="cli") from error
    if least_bytes <= size_bytes <= (most_bytes or size_bytes):
        return size_bytes
    expected = f"at least {format_size(least_bytes)}" if least_bytes > 1 else "a size above 0"
    if most_bytes is not None:
        expected = f"{format_size(least_bytes)} to {format_size(most_bytes)}"
    raise BadConfig(f"expected {expected}, got {text}", object=flag, stage="cli")
