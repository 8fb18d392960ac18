"""Reads a cache directory from outside, for commands that run without a daemon. Blocking."""

from __future__ import annotations

import contextlib
import errno
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from feedd.cache import entry_layout, files, os_errors
from feedd.cache.lock import DirectoryLock
from feedd.cache.recovery import RunLedger
from feedd.cache.report import CacheEntry
from feedd.conversion import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def matches(url: str, pattern: str) -> bool:
    """Return whether a URL matches a shell pattern, or a prefix if there is no ``*``, ``?`` or ``[``."""
    if any(character in pattern for character in "*?["):
        return fnmatchcase(url, pattern)
    return url.startswith(pattern)


def scan(directory: Path) -> Iterator[CacheEntry]:
    """Yield the whole entries of a directory, even one that a running daemon owns; changes nothing.

    Raises:
        CacheUnavailable: the directory cannot be read. A missing directory yields nothing.
    """
    if directory.exists() and not directory.is_dir():
        raise os_errors.unavailable(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), directory)
    for _, entry in _examine_all(directory):
        yield entry


def disk_bytes(directory: Path) -> int:
    """Return the disk bytes of all entries of a directory, whole or not; no file is opened.

    Raises:
        CacheUnavailable: the directory cannot be read. A missing directory has no entries.
    """
    taken_bytes = 0
    for folder, names in files.folders(directory / entry_layout.FORMAT_FOLDER):
        for name in filter(entry_layout.is_entry_name, names):
            with contextlib.suppress(OSError):  # evicted meanwhile
                taken_bytes += entry_layout.whole_pages((folder / name).lstat().st_size)
    return taken_bytes


def remove(directory: Path, predicate: Callable[[CacheEntry], bool]) -> list[CacheEntry]:
    """Remove the entries for which ``predicate`` holds and return them.

    Raises:
        CacheUnavailable: a daemon owns the directory, or it cannot be written.
    """
    if not directory.is_dir():
        return []
    with DirectoryLock(directory):
        removed = []
        for path, entry in _examine_all(directory):
            if predicate(entry):
                files.remove(path)
                removed.append(entry)
        return removed


def _examine_all(directory: Path) -> Iterator[tuple[Path, CacheEntry]]:
    ledger = RunLedger(directory)
    for found in files.examine_all(directory):
        if found.header is not None and ledger.believes(found.header):
            ref = found.header.ref
            yield found.path, CacheEntry(ref.url, ref.etag, ref.size_bytes, conversion=text_of(ref.conversion))
