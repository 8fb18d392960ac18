"""Flags that several commands share."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
_option = partial(typer.Option, rich_help_panel=_PANEL)

ConfigFlag = Annotated[
    Path | None, _option("--config", help="TOML file; else $FEEDD_CONFIG, else /etc/feedd/feedd.toml.")
]
ListenFlag = Annotated[
    list[str] | None, _option("--listen", help="Address for trainers: unix:///path.sock or host:port. May be repeated.")
]
CacheDirFlag = Annotated[Path | None, _option("--cache-dir", help="Directory for shards.")]
CacheSizeFlag = Annotated[str | None, _option("--cache-size", help="Maximum disk space of the cache: 800GiB.")]
StatusFlag = Annotated[str | None, _option("--status", help="Address of the status page and metrics, or off.")]
WorkersFlag = Annotated[str | None, _option("--workers", help="Number of decode workers, or auto.")]
LanesFlag = Annotated[str | None, _option("--lanes", help="Number of daemons that share this node, or auto.")]
AutotuneFlag = Annotated[
    bool | None,
    _option(
        "--autotune/--no-autotune",
        help="Adapt the numbers of workers and requests to demand, or keep them at their maximum.",
        show_default=False,
    ),
]
LogFlag = Annotated[str | None, _option("--log", help="json, text, or auto: text on a terminal.")]
LogLevelFlag = Annotated[str | None, _option("--log-level", help="debug, info, warning or error.")]
SetFlag = Annotated[
    list[str] | None, _option("--set", metavar="NAME=VALUE", help="Any option by its name: cache.free_reserve=5GiB.")
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
        "--engine", help="local: this process. ray: Ray tasks, on the cluster of $RAY_ADDRESS.", callback=_engine
    ),
]


channel_option = partial(
    typer.Option, rich_help_panel="Channels: these flags, else ROOT/input/config/inputdataconfig.json"
)

RootFlag = Annotated[Path, typer.Option("--root", help="Folder with the layout of a SageMaker container's /opt/ml.")]
ChannelFlag = Annotated[
    list[str] | None,
    channel_option(
        "--channel",
        metavar="NAME=URL",
        help="A channel and its data: s3://… or manifest+s3://…; pipes also read augmented+s3://…. May be repeated; "
        "default: the channels of the job's files.",
    ),
]
ShardingFlag = Annotated[
    str | None,
    channel_option(
        "--sharding", metavar="key|replicated", help="key: ShardedByS3Key. replicated: FullyReplicated, the default."
    ),
]
NodesFlag = Annotated[
    int | None,
    channel_option(
        "--nodes", min=1, max=65536, help="Number of nodes; else the hosts of resourceconfig.json, or of $SM_HOSTS."
    ),
]
NodeRankFlag = Annotated[int | None, channel_option("--node-rank", min=0, help="Rank of this node.")]
SeedFlag = Annotated[
    int | None,
    channel_option(
        "--seed",
        help="ShuffleConfig.Seed: it decides with key who gets what, and pipes shuffle the objects in each epoch.",
    ),
]
CompressionFlag = Annotated[
    str | None,
    channel_option(
        "--compression",
        metavar="Gzip|None",
        help="CompressionType: Gzip decompresses each object; SageMaker has it in Pipe mode only.",
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
        switches = [] if self.autotune is None else ["--autotune" if self.autotune else "--no-autotune"]
        plain = [(f"--{flag}", str(value)) for flag, _, value in self._plain() if value]
        plain += [("--config", str(self.config.absolute()))] if self.config else []
        plain += [("--listen", address) for address in self.listen or ()] + [("--set", one) for one in self.set or ()]
        return switches + [part for pair in plain for part in pair]

    def _plain(self) -> list[tuple[str, str, object]]:
        """Return the name, the option and the value of each flag with one value."""
        return [
            ("cache-dir", "cache.dir", self.cache_dir and str(self.cache_dir.absolute())),
            ("cache-size", "cache.size", self.cache_size),
            ("status", "status", self.status),
            ("workers", "decode.workers", self.workers),
            ("lanes", "lanes", self.lanes),
            ("log", "log.format", self.log),
            ("log-level", "log.level", self.log_level),
        ]

    def _given(self) -> dict[str, tuple[object, str]]:
        given: dict[str, tuple[object, str]] = {}
        for text in self.set or []:
            name, equals, value = text.partition("=")
            if not equals:
                raise typer.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint="--set")
            given[name.strip()] = (_parse(value.strip()), "flag --set")
        given |= {option: (value, f"flag --{flag}") for flag, option, value in self._plain() if value is not None}
        if self.listen:
            given["listen"] = ([_absolute(address) for address in self.listen], "flag --listen")
        if self.autotune is not None:
            given["autotune"] = (self.autotune, "flag --autotune" if self.autotune else "flag --no-autotune")
        return given


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


def fields_of(text: str) -> dict[str, Any]:
    """Return the recipe of each field that ``--fields`` names.

    Raises:
        BadConfig: the text is not a JSON object.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        hint = """for example --fields '{"jpg": "image:224x224", "cls": "int"}'"""
        raise BadConfig(f"expected a JSON object, got {text}", object="--fields", hint=hint, stage="cli")
    return found
