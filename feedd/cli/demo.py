"""``feedd demo``: trains a small model end to end on an embedded S3 server or on the user's data."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from feedd.errors import BadConfig


def demo(
    url: Annotated[str | None, typer.Option("--url", help="Data: s3://bucket/prefix/. Default: generated.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="Number of nodes to simulate.")] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1, max=100, help="Number of passes over the data.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the generated shards in ./feedd-demo/train.")] = False,  # noqa: FBT002 - a flag is a flag
) -> None:
    """Train a small model end to end: S3 server, daemons and trainers as real processes on this machine."""
    needed = ("feedd_client", "torch", *(() if url else ("moto", "flask", "flask_cors")))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise BadConfig(
            f"the demo needs {', '.join(missing)}, which is not installed here",
            hint="run make demo in a checkout, or pip install 'feedd[demo]'",
            stage="demo",
        )
    from feedd.demo.demo_run import KEPT, DemoOptions, run  # noqa: PLC0415 - other commands need no OpenCV

    raise typer.Exit(run(DemoOptions(url or None, nodes, epochs, KEPT.absolute() if keep else None)))


def register(app: typer.Typer) -> None:
    """Add the ``demo`` command."""
    app.command(epilog="Example: feedd demo --nodes 2")(demo)
