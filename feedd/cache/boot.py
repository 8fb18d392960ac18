"""Taking over a cache directory: what of it can be used. Blocking: called in the disk thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.cache import files, layout, trouble
from feedd.cache.durability import RunLedger
from feedd.cache.index import CacheIndex
from feedd.errors import CacheUnavailable
from feedd.units import format_size

if TYPE_CHECKING:
    from feedd.cache.lock import DirectoryLock
    from feedd.cache.options import CacheOptions


@dataclass(frozen=True, slots=True)
class Opened:
    """A directory that is ours.

    Attributes:
        index: with every entry that survived.
        ledger: which runs' data is on the disk for sure.
        runs: runs that wrote the survivors.
        broken_count: entries and unfinished fills removed.
        evicted_count: whole entries removed because the limit is smaller now.
    """

    index: CacheIndex
    ledger: RunLedger
    runs: frozenset[bytes]
    broken_count: int
    evicted_count: int


def open_directory(options: CacheOptions, lock: DirectoryLock) -> Opened:
    """Lock the directory, remove what is broken, enter what is whole, most recently written first.

    Raises:
        CacheUnavailable: somebody else owns it, it cannot be written, or the disk has no room for a cache.
    """
    lock.__enter__()
    ledger = RunLedger(options.directory)
    whole: list[tuple[float, layout.Header]] = []
    broken_count = 0
    for found in files.walk(options.directory):
        if found.header is not None and ledger.believes(found.header):
            whole.append((found.written_s, found.header))
        else:
            files.remove(found.path)
            broken_count += 1
    whole.sort(key=lambda item: item[0], reverse=True)
    headers = [header for _, header in whole]
    index = CacheIndex(_limit_bytes(options, sum(layout.disk_bytes(header.ref) for header in headers)))
    kept, used_bytes = [], 0
    for header in headers:
        used_bytes += layout.disk_bytes(header.ref)
        if used_bytes > index.limit_bytes:
            files.remove(layout.file_path(options.directory, header.ref))
        else:
            kept.append(header)
    for header in reversed(kept):  # the index counts uses from the oldest on
        index.adopt(header.ref)
    runs = frozenset(header.run for header in kept)
    return Opened(index, ledger, runs, broken_count, len(headers) - len(kept))


def _limit_bytes(options: CacheOptions, cached_bytes: int) -> int:
    try:
        free_bytes = files.free_bytes(options.directory)
    except OSError as error:
        raise trouble.unavailable(error, options.directory) from error
    limit_bytes = min(options.size_bytes, free_bytes + cached_bytes - options.free_reserve_bytes)
    if limit_bytes < 2 * layout.PAGE_BYTES:
        raise CacheUnavailable(
            f"expected room for a cache of {format_size(options.size_bytes)} beside a reserve of "
            f"{format_size(options.free_reserve_bytes)}, got {format_size(free_bytes)} of free disk space",
            object=str(options.directory),
            hint="free disk space, lower the free-space reserve, or pass another --cache-dir",
            stage="cache",
        )
    return limit_bytes
