"""Opens a cache directory and finds the usable entries in it. Blocking: called in the thread for changes."""

from __future__ import annotations

import contextlib
import gc
import stat
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from feedd.cache import entry_layout, os_errors
from feedd.cache.entry_storage import Opened, UnindexedFile
from feedd.cache.ondisk import entry_files as files
from feedd.cache.ondisk.durability import RunLedger
from feedd.cache.ondisk.journal import Journal, Record
from feedd.cache.policy.cache_index import CacheIndex
from feedd.cache.policy.quota import Quotas
from feedd.errors import CacheUnavailable
from feedd.flow import mounts
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from feedd.cache.cache_options import CacheOptions
    from feedd.cache.ondisk.directory_lock import DirectoryLock
    from feedd.values import ObjectRef


_run_of: Final = itemgetter(slice(2, None))  # boot and run of a record


@dataclass(frozen=True, slots=True)
class Taken:
    """A cache directory that this process owns.

    Attributes:
        opened: the index and the files still to examine.
        ledger: the runs whose data is known to be on the disk.
        journal: the list of entries, open.
        runs: boot and run that wrote each entry of an earlier run.
    """

    opened: Opened
    ledger: RunLedger
    journal: Journal
    runs: dict[ObjectRef, tuple[bytes, bytes]]


@dataclass(slots=True)
class _Found:
    """Files of the directory: listed ones in the order of their last use, others by age, oldest first."""

    listed: list[Record]
    unindexed: list[UnindexedFile]
    broken_count: int


def open_directory(options: CacheOptions, lock: DirectoryLock) -> Taken:
    """Lock the directory, remove useless files and enter all listed entries; other files are examined later.

    Raises:
        CacheUnavailable: another process owns the directory, it cannot be written, it lies on a network file
            system, or the disk has no room.
    """
    if not options.allow_network_fs:
        mounts.refuse_network(options.directory)
    lock.__enter__()
    with _uncollected():
        taken = _take(options)
    lock.sign()  # the start may have freed room on a full disk
    return taken


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector while a million objects are created, none of them garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _take(options: CacheOptions) -> Taken:
    ledger = RunLedger(options.directory)
    listing = Journal(options.directory)
    found = _find(options.directory, ledger, listing.read())
    sizes = [entry_layout.disk_bytes(record.ref) for record in found.listed] + [
        stray.disk_bytes for stray in found.unindexed
    ]
    max_bytes = limit_bytes(options, sum(sizes))
    surplus_count = _surplus_count(sizes, max_bytes)
    kept, unindexed = found.listed[surplus_count:], found.unindexed[max(0, surplus_count - len(found.listed)) :]
    for record in found.listed[:surplus_count]:
        files.remove(entry_layout.file_path(options.directory, record.ref))
    for stray in found.unindexed[: len(found.unindexed) - len(unindexed)]:
        files.remove(stray.path)
    index = CacheIndex(max_bytes, Quotas(options.quotas))
    kept_sizes = sizes[surplus_count : len(found.listed)]
    refused = index.adopt_all((record.ref, size) for record, size in zip(kept, kept_sizes, strict=True))
    for ref in refused:  # by a quota that is smaller now
        files.remove(entry_layout.file_path(options.directory, ref))
    listing.resume(kept)
    runs = {record.ref: (record.boot, record.run) for record in kept}
    return Taken(
        Opened(index, tuple(unindexed), found.broken_count, surplus_count + len(refused)), ledger, listing, runs
    )


def identify(directory: Path, ledger: RunLedger, unindexed: Sequence[UnindexedFile]) -> list[entry_layout.Header]:
    """Return the headers of the good files; broken files are removed.

    Raises:
        CacheUnavailable: a broken file cannot be removed.
    """
    headers = []
    for stray in unindexed:
        found = files.examine(directory, stray.path)
        if found is None:
            continue
        if found.header is not None and ledger.believes(found.header):
            headers.append(found.header)
        else:
            files.remove(found.path)
    return headers


def _find(directory: Path, ledger: RunLedger, records: dict[str, Record]) -> _Found:
    """Sort the files of the directory; remove unfinished fills and entries of other formats or of lost runs."""
    lost = {run for run in set(map(_run_of, records.values())) if not ledger.holds(*run)}
    believed = {name: record for name, record in records.items() if _run_of(record) not in lost} if lost else records
    present: set[str] = set()
    unindexed: list[UnindexedFile] = []
    broken_count = 0
    for folder, names in files.folders(directory / entry_layout.FORMAT_FOLDER):
        here = believed.keys() & map(entry_layout.entry_name, names)  # sets, because there may be a million names
        present |= here
        if len(here) == len(names):
            continue
        for name in names:
            if (entry_layout.entry_name(name) in here and entry_layout.is_entry_name(name)) or not files.is_ours(name):
                continue
            if entry_layout.is_temp_name(name) or entry_layout.entry_name(name) in records:
                broken_count += _removed(folder / name)
            else:
                unindexed += _unindexed_file(folder / name)
    for old in entry_layout.OLD_FOLDERS:
        for folder, names in files.folders(directory / old):
            broken_count += sum(_removed(folder / name) for name in filter(files.is_ours, names))
    unindexed.sort(key=lambda stray: stray.written_s)
    if len(present) == len(believed):
        return _Found(list(believed.values()), unindexed, broken_count)
    return _Found([record for name, record in believed.items() if name in present], unindexed, broken_count)


def _removed(path: Path) -> int:
    """Remove a file of the cache and return 1; return 0 if the path is no longer a regular file."""
    if path.is_symlink() or not path.is_file():
        return 0
    files.remove(path)
    return 1


def _unindexed_file(path: Path) -> list[UnindexedFile]:
    try:
        status = path.lstat()
    except OSError:
        return []  # removed since the listing
    if not stat.S_ISREG(status.st_mode):
        return []
    return [UnindexedFile(path, entry_layout.whole_pages(status.st_size), status.st_mtime)]


def _surplus_count(sizes: list[int], limit_bytes: int) -> int:
    """Return how many of the first entries must be removed to fit the limit."""
    over_bytes = sum(sizes) - limit_bytes
    count = 0
    while over_bytes > 0:
        over_bytes -= sizes[count]
        count += 1
    return count


def limit_bytes(options: CacheOptions, cached_bytes: int) -> int:
    """Return the size limit of a cache whose entries take ``cached_bytes`` now.

    Raises:
        CacheUnavailable: there is no room for any entry, or the directory cannot be read.
    """
    try:
        free_bytes = files.free_bytes(options.directory)
    except OSError as error:
        raise os_errors.unavailable(error, options.directory) from error
    limit_bytes = min(options.size_bytes, free_bytes + cached_bytes - options.free_reserve_bytes)
    if limit_bytes < 2 * entry_layout.PAGE_BYTES:
        raise CacheUnavailable(
            f"a cache of {format_size(options.size_bytes)} and a reserve of {format_size(options.free_reserve_bytes)} "
            f"need more disk space than the {format_size(free_bytes)} free",
            object=str(options.directory),
            hint="free disk space, lower the free-space reserve, or pass another --cache-dir",
            stage="cache",
        ) from os_errors.StorageFull(2 * entry_layout.PAGE_BYTES, free_bytes, options.free_reserve_bytes)
    return limit_bytes
