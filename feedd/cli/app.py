"""The commands, put together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from feedd import __version__
from feedd.cli import bench, cache, check, demo, index, plan, serve
from feedd.cli.report import report
from feedd.errors import FeeddError
from feedd.observe.logs import configure_logging

app = typer.Typer(
    name="feedd",
    help="Per-node daemon that streams training shards from S3, decodes each sample once and feeds PyTorch.",
    epilog="Exit codes: 0 clean, 2 bad configuration or usage, 1 anything else.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _everywhere(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: feedd version")
def version() -> None:
    """Print the version."""
    typer.echo(f"feedd {__version__}")


serve.register(app)
check.register(app)
plan.register(app)
index.register(app)
cache.register(app)
demo.register(app)
bench.register(app)


def main() -> None:
    """Run the command line; the process's exit code says how it went."""
    configure_logging("text", "warning")  # to stderr: what a command prints is its result; serve says its own
    try:
        app()
    except FeeddError as error:
        sys.exit(report(error))
