"""One owner per cache directory, ensured by a lock that the kernel releases when its owner ends.

Temporary cache directories end with their process. The next process removes those of killed ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from feedd.cache import os_errors
from feedd.errors import BadConfig, CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_NAME = "lock"
_YOUNG_S = 60.0  # a directory younger than this may not have been locked by its process yet


def was_owned(directory: Path) -> bool:
    """Whether a directory has an owner, or had one that was killed; a normal release empties the lock file."""
    try:
        return (directory / LOCK_NAME).lstat().st_size > 0
    except OSError:
        return False


class DirectoryLock:
    """An flock on ``<directory>/lock``; the directory is created if missing. A context manager.

    The file stays when the lock is released: removing it would let two owners lock two files of that name.

    Attributes:
        fd: descriptor of the locked file; -1: the lock is not held.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fd = -1

    def __enter__(self) -> Self:
        """Lock the directory.

        Raises:
            CacheUnavailable: another process owns the directory, it cannot be created or written, or other users may
                write to it.
        """
        try:
            self._directory.parent.mkdir(parents=True, exist_ok=True)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            check_private(self._directory)
            fd = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise os_errors.unavailable(error, self._directory) from error
        try:
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the lock; harmless if it is not held."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def sign(self) -> None:
        """Write the owner's process id again, in case a full disk had no room for it.

        Raises:
            CacheUnavailable: the id cannot be written.
        """
        try:
            self._sign(self.fd)
        except OSError as error:
            raise os_errors.unavailable(error, self._directory) from error

    def _sign(self, fd: int) -> None:
        try:
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            if not os_errors.is_full(error):
                raise  # the cache's own entries may fill the disk, so the lock is held without its owner's id

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            self._sign(fd)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CacheUnavailable(
                f"the cache directory is in use by process {owner}",
                object=str(self._directory),
                hint="stop that process, or pass another --cache-dir",
                stage="cache",
            ) from error
        except OSError as error:
            raise os_errors.unavailable(error, self._directory) from error


def open_locked(folder: Path) -> int:
    """Return a descriptor of a folder that is locked for as long as the descriptor is open; make the folder if missing.

    Raises:
        OSError: the folder cannot be made, opened or locked.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_private(directory: Path, what: str = "cache directory") -> None:
    """Refuse a directory in which other users could plant files, or exchange files for links.

    Args:
        directory: the directory.
        what: what it is, for the error.

    Raises:
        CacheUnavailable: it belongs to another user than this process's or root, others may write to it, or it is a
            link.
        OSError: it cannot be looked at.
    """
    status = directory.lstat()
    user = os.geteuid()
    # Where each user has a group of the same number, a umask of 002 is usual and lets nobody else in.
    others = stat.S_IWOTH | (0 if status.st_gid == user else stat.S_IWGRP)
    if stat.S_ISLNK(status.st_mode):
        got, hint = "a link", "name the directory that the link leads to"
    elif status.st_uid not in {user, 0}:
        got, hint = f"one of user {status.st_uid}", f"let the daemon make a directory of its own: {directory}/feedd"
    elif status.st_mode & others:
        got, hint = f"mode {stat.S_IMODE(status.st_mode):04o}", f"chmod go-w {directory}, or use {directory}/feedd"
    else:
        return
    raise CacheUnavailable(
        f"expected a {what} that only user {user} can write to, got {got}",
        object=str(directory),
        hint=hint,
        stage="cache",
    )


def temporary_folder() -> Path:
    """Return the folder for temporary files.

    Raises:
        BadConfig: no folder is writable.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise BadConfig(
            "expected a writable folder for temporary files, got none",
            object="TMPDIR",
            hint="set TMPDIR to a writable folder, and FEEDD_CACHE__DIR to one on a disk with room for a cache",
            stage="config",
        ) from error


@contextmanager
def temporary_cache() -> Iterator[Path]:
    """Yield a new cache directory, which is removed at the end; before, remove those of killed processes.

    Raises:
        BadConfig: no folder is writable.
    """
    parent = temporary_folder()
    sweep(parent)
    with tempfile.TemporaryDirectory(prefix=_prefix(), dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def sweep(parent: Path, name_prefix: str | None = None) -> None:
    """Remove this user's directories of killed daemons; the next daemon needs the space at once.

    Args:
        parent: where they are.
        name_prefix: how their names begin; None: those of caches.
    """
    for path in parent.glob(f"{name_prefix or _prefix()}*"):
        try:
            stat = path.lstat()
            age_s = time.time() - stat.st_mtime  # noqa: TID251 - a file's time is a date
            if stat.st_uid != os.geteuid() or (age_s < _YOUNG_S and not was_owned(path)):
                continue
            with DirectoryLock(path):
                shutil.rmtree(path, ignore_errors=True)
        except (OSError, CacheUnavailable):  # removed meanwhile, or in use
            continue


def _prefix() -> str:
    """Return the prefix of this user's temporary cache directories."""
    return f"feedd-cache-{os.geteuid()}-"
