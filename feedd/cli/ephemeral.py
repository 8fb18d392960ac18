"""Defaults of a daemon that a client starts for one process tree: any free status port, and a separate cache directory.

Such daemons run as any user, and several may run at once. So they cannot share the default port, nor the default
directory, which needs an administrator. Their status page is for the user who started them, by a token. The cache is
deleted with the daemon. If a daemon was killed, the next daemon deletes its cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.lock import temporary_cache
from feedd.config.loading import DEFAULT_ORIGIN, PROCESS_TREE
from feedd.observe.recent_log import RECENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.cli.flags import Flags
    from feedd.config import Config, Effective

_STATUS = "127.0.0.1:0"
CACHE_FILE = "cache-dir"
"""File beside the socket that names the cache's directory; the client that started the daemon logs it."""
_LOCK_FILE = "lock"
_LOG_FILE = "feedd.log"
_STDERR = 2


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
