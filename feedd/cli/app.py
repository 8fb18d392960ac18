"""The ``feedd`` command and the list of its subcommands."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
import traceback
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from feedd import __version__
from feedd.errors import FeeddError
from feedd.flow.log_sink import take_stderr
from feedd.observe.logs import configure_logging, redact_traceback

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
COMMANDS: Final = {
    "serve": "Run the daemon in the foreground until SIGTERM or SIGINT; a second signal ends it at once.",
    "check": "Show the effective configuration, where each value came from, and whether this machine can serve it.",
    "peek": "Show what is in a dataset: format, shards, bytes, fields, and the first samples.",
    "plan": "Show which node gets which keys and bytes, and how well shuffling mixes.",
    "files": "Put this node's objects of each channel below ROOT/input/data, as files with their own names and bytes.",
    "index": "Count the samples of every shard and write them beside the data, as _feedd_index.json.",
    "pipe": "Serve SageMaker's Pipe mode: a FIFO ROOT/input/data/CHANNEL_EPOCH per epoch, until SIGTERM or SIGINT.",
    "pack": "Write small objects into shards of nearly equal size, with a manifest of their digests.",
    "top": "Show what a running daemon does: jobs, the path of the data and its bottleneck, ranks, cache and errors.",
    "doctor": "Measure a running job, and name the one stage that holds it up, with the evidence and what to turn.",
    "sessions": "List the sessions of a running daemon, and end one.",
    "cache": "List and clear the cache, and fill it in advance.",
    "support": "Pack what a question needs into one file, without secrets: versions, configuration, checks, metrics.",
    "demo": "Train a small model end to end: S3 server, daemons and trainers as real processes on this machine.",
    "bench": "Measure a stage of the daemon on this machine.",
}
"""Modules of this package that hold one command each, with the first sentence of the command's help."""


class _Commands(TyperGroup):
    """Commands whose modules are imported only when used, because importing all takes half a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - click's
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


@functools.cache
def load(name: str) -> TyperCommand | TyperGroup:
    """Import one of ``COMMANDS``."""
    alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
    importlib.import_module(f"feedd.cli.{name}").register(alone)
    command = typer.main.get_command(alone)
    if isinstance(command, TyperGroup):
        command = command.commands[name]
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


app = typer.Typer(
    name="feedd",
    cls=_Commands,
    help="Per-node daemon that streams training shards from S3, decodes each sample once and feeds PyTorch.",
    epilog="Exit codes: 0 success, 2 wrong configuration or usage, 1 any other error.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:  # noqa: FBT001 - typer's signature
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


def _imported_when_used() -> None:
    """Placeholder for a command of ``COMMANDS`` in help and suggestions."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_imported_when_used)


def main() -> None:
    """Run the command line; errors end the process with an exit code."""
    take_stderr()
    configure_logging("text", "warning")  # to stderr, because stdout is for results; serve configures its own logs
    try:
        try:
            app()
        except FeeddError as error:
            from feedd.cli.report import say_error  # noqa: PLC0415 - imports the configuration

            sys.exit(say_error(error))
    except Exception as error:  # noqa: BLE001 - as the interpreter would, but without secrets
        lost = _output_lost(error)
        said = f"feedd: error: standard output cannot be written: {lost}" if lost else traceback.format_exc()
        sys.stderr.write(f"{redact_traceback(said)}\n")
        sys.exit(1)


def _output_lost(error: Exception) -> str:
    """Return why standard output takes no more text, and drop the rest of it; empty: the error is another.

    An error of a file has the file's name, and errors of stores and sockets are translated where they arise.
    """
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _NO_ROOM:
        return ""
    if os.environ.get("FEEDD_DEBUG") == "1":
        return ""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is written again at the end
    return os.strerror(error.errno).lower()
