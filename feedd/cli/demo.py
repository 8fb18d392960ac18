"""``feedd demo``: the main job on an embedded S3 server, or on the user's own data."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from feedd.errors import BadConfig


def demo(
    url: Annotated[str | None, typer.Option("--url", help="Your data: s3://bucket/prefix/. Left out: made up.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="How many nodes to play.")] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1, max=100, help="How often through the data.")] = 2,
) -> None:
    """Train a small model end to end: S3 server, daemons and trainers as real processes on this machine."""
    needed = ("feedd_client", "torch")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise BadConfig(
            f"the demo needs {', '.join(missing)}, which is not installed",
            hint="run make demo in a checkout, or pip install 'feedd[demo]' feedd-client",
            stage="demo",
        )
    from feedd.demo.demo_run import run  # noqa: PLC0415 - the other commands do not need torch

    raise typer.Exit(run(url=url, nodes=nodes, epochs=epochs))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd demo --nodes 2")(demo)
