"""``feedd serve``: the daemon in the foreground, and the defaults of a daemon that a client starts."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd import __version__
from feedd.cache.lock import DirectoryLock, sweep, temporary_cache, temporary_folder
from feedd.cli.flags import (
    AutotuneFlag,
    CacheDirFlag,
    CacheSizeFlag,
    ConfigFlag,
    Flags,
    LanesFlag,
    ListenFlag,
    LogFlag,
    LogLevelFlag,
    SetFlag,
    StatusFlag,
    WorkersFlag,
)
from feedd.config.loading import DEFAULT_ORIGIN, PROCESS_TREE
from feedd.flow.allocator import return_large_blocks
from feedd.lanes.lane import Lane, remove_other_lanes
from feedd.lanes.lane_process import become_lane
from feedd.observe.logs import configure_logging
from feedd.observe.recent_log import RECENT
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.config import Config, Effective

_STATUS = "127.0.0.1:0"
CACHE_FILE = "cache-dir"
"""File beside the socket that names the cache's directory; the client that started the daemon logs it."""
_LOCK_FILE = "lock"
_LOG_FILE = "feedd.log"
_STDERR = 2
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
    lanes: LanesFlag = None,
    autotune: AutotuneFlag = None,
    standby: Annotated[  # noqa: FBT002 - a flag is a flag
        bool, typer.Option("--standby", help="Start next to a running daemon, and take over when it ends.")
    ] = False,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", hidden=True)] = False,  # noqa: FBT002 - a flag is a flag
    lane: Annotated[str | None, typer.Option("--lane", hidden=True)] = None,
    lane_folder: Annotated[Path | None, typer.Option("--lane-folder", hidden=True)] = None,
) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT; a second signal ends it at once.

    With --lanes, several daemons share the node: each has its part of the cores, the memory and the cache. Trainers
    use one address, and find their lane by their local rank.
    """
    flags = Flags(config, listen, cache_dir, cache_size, status, workers, log, log_level, set_, lanes, autotune)
    with ephemeral_config(flags) if ephemeral else nullcontext(flags.load()) as effective:
        if ephemeral:
            note_cache_dir(effective.config)
        if lane is not None and lane_folder is not None:
            me = Lane.parse(lane)
            _log_to_stderr(effective, {"lane": me.index})
            mine = become_lane(effective, me, lane_folder)
            code = _run(mine, ephemeral=ephemeral, standby=standby, greets=False)
        elif effective.config.lanes > 1:
            _log_to_stderr(effective)
            code = _supervise(effective, flags, ephemeral=ephemeral, standby=standby)
        else:
            _log_to_stderr(effective)
            remove_other_lanes(effective.config.cache.dir, 1)
            code = _run(effective, ephemeral=ephemeral, standby=standby, greets=True)
    if ephemeral and effective.config.lanes == 1 and not code:
        remove_launch_folder(effective.config)
    raise typer.Exit(code)


def _supervise(effective: Effective, flags: Flags, *, ephemeral: bool, standby: bool) -> int:
    """Run a node's lanes, each a process of this command."""
    config = effective.config
    remove_other_lanes(config.cache.dir, config.lanes)
    switches = ["--standby"] if standby else []
    # Trainers start another node at once if theirs fails, so its lanes must not wait for open streams.
    switches += ["--set", "drain.grace=0s"] if ephemeral else []
    common = [sys.executable, "-m", "feedd", "serve", *flags.arguments(), "--cache-dir", str(config.cache.dir)]
    prefix = f"feedd-lanes-{os.geteuid()}-"
    sweep(temporary_folder(), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder, DirectoryLock(Path(folder)):

        def arguments(lane: Lane) -> list[str]:
            # Processes of the process tree hold the first lane, and the node ends with it.
            mine = [*switches, "--ephemeral"] if ephemeral and lane.index == 0 else switches
            return [*common, *mine, "--lanes", str(lane.count), "--lane", str(lane), "--lane-folder", folder]

        from feedd.daemon.node_page import page_access  # noqa: PLC0415 - takes a third of a second
        from feedd.daemon.notify import Notifier  # noqa: PLC0415 - takes a third of a second
        from feedd.lanes.lane_supervisor import LaneCommand, Supervisor  # noqa: PLC0415 - takes a third of a second

        command = LaneCommand(arguments, dict(os.environ), Path(folder), standby=standby, ends_with_first=ephemeral)
        on_ready = partial(_greet, effective) if sys.stderr.isatty() else None
        supervisor = Supervisor(config, command, Notifier(os.environ), on_ready, page_access(effective))
        return asyncio.run(supervisor.run())


def _log_to_stderr(effective: Effective, fields: Mapping[str, object] | None = None) -> None:
    """Log for a person on a terminal, else for machines, unless the configuration says otherwise.

    Args:
        effective: has the form and the level.
        fields: fields of every line.
    """
    sys.stdout = sys.stderr  # a library that prints must not end the daemon, or wait for a reader
    on_terminal = sys.stderr.isatty()
    form = effective.config.log.format
    if form == "auto":
        form = "text" if on_terminal else "json"
    brief = on_terminal and form == "text"
    without = _GREETED if brief else ()
    configure_logging(form, effective.config.log.level, brief=brief, without=without, fields=fields or {})


def _run(effective: Effective, *, ephemeral: bool, standby: bool, greets: bool) -> int:
    return_large_blocks()
    # The stages take most of a second to import; a wrong configuration is reported before that.
    gc.disable()  # imports leave no garbage, and looking for it took an eighth of their time
    import uvloop  # noqa: PLC0415 - see above

    from feedd.daemon import life  # noqa: PLC0415 - see above

    gc.freeze()
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        on_ready = partial(_greet, effective) if greets and sys.stderr.isatty() else None
        return runner.run(life.run(effective, ephemeral=ephemeral, standby=standby, on_ready=on_ready))


def _greet(effective: Effective, addresses: Sequence[str], page: str | None, cache_bytes: int) -> None:
    """Print, on a terminal, that the daemon is ready and what to do next."""
    cache = effective.config.cache
    size = format_size(min(cache.size, cache_bytes))  # the disk may have less room
    lines = [
        f"feedd {__version__} is ready. Ctrl-C stops it.",
        f"  address       {addresses[0]}",
        *(f"                {other}" for other in addresses[1:]),
        f"  cache         {cache.dir}, up to {size}",
        *([f"  lanes         {effective.config.lanes}"] if effective.config.lanes > 1 else []),
        f"  web page      {page or 'off; --status 127.0.0.1:7071 turns it on'}",
        f"  in a shell    FEEDD_ADDRESS={addresses[0]} python train.py",
        f'  in Python     FeedDataset("s3://bucket/train/", batch_size=256, address="{addresses[0]}")',
        "  see also      feedd top, feedd peek URL, feedd check URL, feedd cache stat",
    ]
    sys.stderr.write("\n".join(lines) + "\n")


@contextmanager
def ephemeral_config(flags: Flags) -> Iterator[Effective]:
    """Yield the configuration of a daemon for one process tree; delete its cache directory afterwards.

    Raises:
        ConfigProblems: with all problems of the configuration.
    """
    origins = flags.load().origins
    unsaid: dict[str, tuple[object, str]] = {}
    if origins["status"] == DEFAULT_ORIGIN:
        unsaid["status"] = (_STATUS, PROCESS_TREE)
    if origins["cache.dir"] != DEFAULT_ORIGIN:
        yield flags.load(unsaid)
        return
    with temporary_cache() as folder:
        unsaid["cache.dir"] = (str(folder), PROCESS_TREE)
        yield flags.load(unsaid)


def note_cache_dir(config: Config) -> None:
    """Write the path of the cache's directory to a file beside the socket."""
    for address in config.listen:
        scheme, _, path = address.partition("://")
        if scheme == "unix":
            note = Path(path).with_name(CACHE_FILE)
            note.unlink(missing_ok=True)  # of a former daemon; a link that another user put there is not followed
            with note.open("x", encoding="utf-8") as file:
                file.write(str(config.cache.dir))


def remove_launch_folder(config: Config) -> None:
    """Remove the folder that a client made for this daemon's launch, once the daemon has ended without an error.

    The folder stays if the log in it has an error, or if a client uses the folder for another daemon.
    """
    if any(line.level == "error" for line in RECENT.lines()):
        return
    for address in config.listen:
        scheme, _, path = address.partition("://")
        if scheme == "unix":
            with contextlib.suppress(OSError):
                _remove(Path(path).parent)


def _remove(folder: Path) -> None:
    """Remove a launch's folder; its lock file is removed last.

    Raises:
        OSError: the folder is not a launch's, or a client uses it.
    """
    log, lock = folder / _LOG_FILE, folder / _LOCK_FILE
    if not os.path.samestat(log.lstat(), os.fstat(_STDERR)):
        return
    fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a client that starts a daemon here holds it
        # A successor's socket would be here; clients look again at the lock file's path once they hold the lock.
        if {path.name for path in folder.iterdir()} <= {_LOCK_FILE, _LOG_FILE, CACHE_FILE}:
            for path in (log, folder / CACHE_FILE, lock):
                path.unlink(missing_ok=True)
            folder.rmdir()
    finally:
        os.close(fd)


def register(app: typer.Typer) -> None:
    """Add the ``serve`` command."""
    app.command(
        epilog="Example: feedd serve --cache-dir /mnt/nvme/feedd --cache-size 800GiB --listen unix:///run/feedd/feedd.sock"
    )(serve)
