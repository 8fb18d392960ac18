"""Defaults of a daemon that a client starts for one process tree: any free status port, and a separate cache directory.

Such daemons run as any user, and several may run at once. So they cannot share the default port, nor the default
directory, which needs an administrator. Their status page is for the user who started them, by a token. The cache is
deleted with the daemon. If a daemon was killed, the next daemon deletes its cache.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.ondisk.temporary_dirs import temporary_cache
from feedd.config.loading import DEFAULT_ORIGIN, PROCESS_TREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.cli.flags import Flags
    from feedd.config import Config, Effective

_STATUS = "127.0.0.1:0"
CACHE_FILE = "cache-dir"
"""File beside the socket that names the cache's directory; the client that started the daemon logs it."""


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
