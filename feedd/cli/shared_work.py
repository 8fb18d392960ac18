"""Flags of commands whose work several processes may share: ``--part`` and ``--engine``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from feedd.dataset.shard_part import WHOLE, ShardPart

_ENGINES: Final = ("local", "ray")

PartFlag = Annotated[
    str | None, typer.Option("--part", metavar="I/N", help="Do only part I of N, from 0 to N - 1; see below.")
]
EngineFlag = Annotated[
    str, typer.Option("--engine", help="local: this process. ray: Ray tasks, on the cluster of $RAY_ADDRESS.")
]


def part_of(text: str | None) -> ShardPart:
    """Return the part that the user named; without a name, all shards.

    Raises:
        BadRequest: the text is no part.
    """
    return WHOLE if text is None else ShardPart.parse(text)


def check_engine(name: str) -> None:
    """Check the name of an engine.

    Raises:
        typer.BadParameter: there is no such engine.
    """
    if name not in _ENGINES:
        raise typer.BadParameter(f"expected {' or '.join(_ENGINES)}, got {name!r}", param_hint="--engine")
