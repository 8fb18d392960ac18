"""Defaults of a daemon that a client starts for one process tree: any free status port, and a separate cache directory.

Such daemons run as any user, and several may run at once. So they cannot share the default port, nor the default
directory, which needs an administrator. Their status page is for the user who started them, by a token. The cache is
deleted with the daemon. If a daemon was killed, the next daemon deletes its cache.
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
from feedd.config.loading import DEFAULT_ORIGIN, PROCESS_TREE
from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.cli.flags import Flags
    from feedd.config import Config, Effective

_STATUS = "127.0.0.1:0"
CACHE_FILE = "cache-dir"
"""File beside the socket that names the cache's directory; the client that started the daemon logs it."""
_YOUNG_S = 60.0  # a directory younger than this may not have been locked by its daemon yet


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
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=prefix(), ignore_cleanup_errors=True) as home:
        unsaid["cache.dir"] = (home, PROCESS_TREE)
        yield flags.load(unsaid)


def note_cache_dir(config: Config) -> None:
    """Write the path of the cache's directory to a file beside the socket."""
    for address in config.listen:
        scheme, _, path = address.partition("://")
        if scheme == "unix":
            Path(path).with_name(CACHE_FILE).write_text(str(config.cache.dir), encoding="utf-8")


def sweep(parent: Path, name_prefix: str | None = None) -> None:
    """Remove this user's directories of killed daemons; the next daemon needs the space at once.

    Args:
        parent: where they are.
        name_prefix: how their names begin; None: those of caches.
    """
    for path in parent.glob(f"{name_prefix or prefix()}*"):
        try:
            stat = path.lstat()
            age_s = time.time() - stat.st_mtime  # noqa: TID251 - a file's time is a date
            if stat.st_uid != os.geteuid() or (age_s < _YOUNG_S and not was_owned(path)):
                continue
            with DirectoryLock(path):
                shutil.rmtree(path, ignore_errors=True)
        except (OSError, CacheUnavailable):  # removed meanwhile, or in use
            continue


def prefix() -> str:
    """Return the prefix of this user's temporary cache directories."""
    return f"feedd-cache-{os.geteuid()}-"
