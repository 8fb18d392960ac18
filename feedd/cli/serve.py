"""``feedd serve``: runs the daemon in the foreground."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from feedd import __version__
from feedd.cli.ephemeral import ephemeral_config, note_cache_dir
from feedd.cli.flags import (
    CacheDirFlag,
    CacheSizeFlag,
    ConfigFlag,
    Flags,
    ListenFlag,
    LogFlag,
    LogLevelFlag,
    SetFlag,
    StatusFlag,
    WorkersFlag,
)
from feedd.observe.logs import configure_logging
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.config import Effective


_GREETED = ("serving", "status page", "ready")
"""Log events that the greeting replaces."""


def serve(
    config: ConfigFlag = None,
    listen: ListenFlag = None,
    cache_dir: CacheDirFlag = None,
    cache_size: CacheSizeFlag = None,
    status: StatusFlag = None,
    workers: WorkersFlag = None,
    log: LogFlag = None,
    log_level: LogLevelFlag = None,
    set_: SetFlag = None,
    standby: Annotated[  # noqa: FBT002 - a flag is a flag
        bool, typer.Option("--standby", help="Start next to a running daemon, and take over when it ends.")
    ] = False,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", hidden=True)] = False,  # noqa: FBT002 - a flag is a flag
) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT; a second signal ends it at once."""
    flags = Flags(config, listen, cache_dir, cache_size, status, workers, log, log_level, set_)
    with ephemeral_config(flags) if ephemeral else nullcontext(flags.load()) as effective:
        if ephemeral:
            note_cache_dir(effective.config)
        code = _run(effective, ephemeral=ephemeral, standby=standby)
    raise typer.Exit(code)


def _run(effective: Effective, *, ephemeral: bool, standby: bool) -> int:
    on_terminal = sys.stderr.isatty()
    form = effective.config.log.format
    if form == "auto":
        form = "text" if on_terminal else "json"
    brief = on_terminal and form == "text"
    configure_logging(form, effective.config.log.level, brief=brief, without=_GREETED if brief else ())
    # The stages take most of a second to import; a wrong configuration is reported before that.
    gc.disable()  # imports leave no garbage, and looking for it took an eighth of their time
    import uvloop  # noqa: PLC0415 - see above

    from feedd import daemon  # noqa: PLC0415 - see above

    gc.freeze()
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        on_ready = partial(_greet, effective) if on_terminal else None
        return runner.run(daemon.run(effective, ephemeral=ephemeral, standby=standby, on_ready=on_ready))


def _greet(effective: Effective, addresses: Sequence[str], status: str | None) -> None:
    """Print, on a terminal, that the daemon is ready and what to do next."""
    cache = effective.config.cache
    lines = [
        f"feedd {__version__} is ready. Ctrl-C stops it.",
        f"  address       {addresses[0]}",
        *(f"                {other}" for other in addresses[1:]),
        f"  cache         {cache.dir}, up to {format_size(cache.size)}",
        f"  status page   {f'http://{status}/' if status else 'off; --status 127.0.0.1:7071 turns it on'}",
        f"  in a shell    FEEDD_ADDRESS={addresses[0]} python train.py",
        f'  in Python     FeedDataset("s3://bucket/train/", batch_size=256, address="{addresses[0]}")',
        "  see also      feedd peek URL, feedd check URL, feedd cache stat",
    ]
    sys.stderr.write("\n".join(lines) + "\n")


def register(app: typer.Typer) -> None:
    """Add the ``serve`` command."""
    app.command(
        epilog="Example: feedd serve --cache-dir /mnt/nvme/feedd --cache-size 800GiB --listen unix:///run/feedd/feedd.sock"
    )(serve)
