"""``feedd serve``: run the daemon in the foreground."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.cli.ephemeral import of_its_own
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

if TYPE_CHECKING:
    from feedd.config import Effective


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
    ephemeral: Annotated[bool, typer.Option("--ephemeral", hidden=True)] = False,  # noqa: FBT002 - a flag is a flag
) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT; a second signal ends it at once."""
    flags = Flags(config, listen, cache_dir, cache_size, status, workers, log, log_level, set_)
    with of_its_own(flags) if ephemeral else nullcontext(flags.load()) as effective:
        code = _run(effective, ephemeral=ephemeral)
    raise typer.Exit(code)


def _run(effective: Effective, *, ephemeral: bool) -> int:
    configure_logging(effective.config.log.format, effective.config.log.level)
    # The stages take most of a second to import: a wrong configuration is told before.
    import uvloop  # noqa: PLC0415 - see above

    from feedd import daemon  # noqa: PLC0415 - see above

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(daemon.run(effective, ephemeral=ephemeral))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Example: feedd serve --cache-dir /mnt/nvme/feedd --cache-size 800GiB --listen unix:///run/feedd/feedd.sock"
    )(serve)
