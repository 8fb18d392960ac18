"""What a daemon started for one process tree does where nobody said otherwise: no status port, a cache of its own.

Such daemons run as any user and any number at a time, so neither the one default port nor the one default directory,
which needs an administrator, is theirs. The cache goes with the daemon; what a killed one left, the next removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.ondisk.directory_lock import DirectoryLock, was_owned
from feedd.config.loading import DEFAULT_ORIGIN
from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.cli.flags import Flags
    from feedd.config import Config, Effective

ORIGIN = "process tree"
CACHE_FILE = "cache-dir"
"""Beside the socket: where the cache is. The client that started the daemon says it."""
_YOUNG_S = 60.0  # between making a directory and owning it


@contextmanager
def of_its_own(flags: Flags) -> Iterator[Effective]:
    """Yield the configuration of a daemon for one process tree; its cache directory is gone afterwards.

    Raises:
        ConfigProblems: with every problem.
    """
    origins = flags.load().origins
    unsaid: dict[str, tuple[object, str]] = {}
    if origins["status"] == DEFAULT_ORIGIN:
        unsaid["status"] = ("off", ORIGIN)
    if origins["cache.dir"] != DEFAULT_ORIGIN:
        yield flags.load(unsaid)
        return
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=prefix(), ignore_cleanup_errors=True) as home:
        unsaid["cache.dir"] = (home, ORIGIN)
        yield flags.load(unsaid)


def tell_cache(config: Config) -> None:
    """Write down where the cache is."""
    for address in config.listen:
        scheme, _, path = address.partition("://")
        if scheme == "unix":
            Path(path).with_name(CACHE_FILE).write_text(str(config.cache.dir), encoding="utf-8")


def sweep(parent: Path) -> None:
    """Remove this user's cache directories whose daemon was killed; its successor needs the space at once."""
    for path in parent.glob(f"{prefix()}*"):
        try:
            stat = path.lstat()
            age_s = time.time() - stat.st_mtime  # noqa: TID251 - a file's time is a date
            if stat.st_uid != os.geteuid() or (age_s < _YOUNG_S and not was_owned(path)):
                continue
            with DirectoryLock(path):
                shutil.rmtree(path, ignore_errors=True)
        except (OSError, CacheUnavailable):  # gone meanwhile, or in use
            continue


def prefix() -> str:
    """Return how the names of this user's cache directories begin that end with their process."""
    return f"feedd-cache-{os.geteuid()}-"
