"""One ``feedd files`` at a time for a root: the kernel releases the lock when its owner ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from feedd.cache.lock import check_private
from feedd.errors import CacheUnavailable, PermissionDenied, ResourceExhausted
from feedd.file_mode.channel_directory import translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME: Final = "lock"


@contextlib.contextmanager
def root_locked(folder: Path) -> Iterator[None]:
    """Hold the lock in a folder, which is made if it is missing.

    Raises:
        ResourceExhausted: another process holds it.
        PermissionDenied: the folder cannot be written, or other users may write to it.
        StoreUnavailable: the folder cannot be written.
    """
    with translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            check_private(folder, "folder for the records of feedd files")
        except CacheUnavailable as error:  # the records say which files are whole, so others could plant files
            hint = "remove it, or name another --root"
            raise PermissionDenied(error.message, object=str(folder), hint=hint, stage="files") from error
        fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResourceExhausted(
                "expected to be the only feedd files for this root, got another one",
                object=str(folder.parent.parent),
                hint="wait for its end, or name another --root",
                stage="files",
            ) from error
        yield
    finally:
        os.close(fd)
