"""Cache directories that end with their process; the next process removes those of killed ones."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.ondisk.directory_lock import DirectoryLock, was_owned
from feedd.errors import BadConfig, CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_YOUNG_S = 60.0  # a directory younger than this may not have been locked by its process yet


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
