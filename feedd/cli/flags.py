"""Flags that set options, shared by all commands that read the configuration."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.config import Effective, find_file, load
from feedd.config.types import UNIX_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

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
