"""Opens a cache directory and finds the usable entries in it. Blocking: called in the thread for changes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import secrets
import stat
import struct
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from awscrt.checksums import crc32c

from feedd.cache import entry_layout, files, os_errors
from feedd.cache.index import CacheIndex, Quotas
from feedd.cache.storage import Opened, UnindexedFile
from feedd.errors import CacheUnavailable
from feedd.flow import mounts
from feedd.units import format_size
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from feedd.cache.entry_layout import Header
    from feedd.cache.lock import DirectoryLock
    from feedd.cache.options import CacheOptions

INDEX_NAME: Final = "index"
_HEAD: Final = struct.pack("<8sI", b"feeddidx", 1)
_FRAME: Final = struct.Struct("<II")
_NAME_BYTES: Final = 32
_CHUNK_ENTRIES: Final = 4096
FLUSHED_NAME = "flushed"
_RUN_BYTES = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_run_of: Final = itemgetter(slice(2, None))  # boot and run of a record


class Record(NamedTuple):
    """One entry.

    Attributes:
        name: the file's name, 64 hexadecimal digits.
        boot: the boot in its header.
        run: the run in its header.
    """

    name: str
    ref: ObjectRef
    boot: bytes
    run: bytes


class _Chunk(msgspec.Struct, array_like=True):
    """Columns of a chunk; texts are bytes, because names of local files need not be UTF-8."""

    runs: list[tuple[bytes, bytes]]
    roots: list[bytes]
    names: bytes
    keys: list[bytes]
    etags: list[bytes]
    sizes: list[int]
    run_at: list[int]
    root_at: list[int]


_decoder = msgspec.msgpack.Decoder(_Chunk)


class Journal:
    """Which entries a directory holds, in the order of their use, so that a start need not open a million files.

    ``<directory>/index`` only saves work, so the methods never raise. A listed file that does not exist is ignored, an
    unlisted file is examined, and a listed file is checked at its first use. The list may be stale, torn or missing.

    Format: magic[8], version u32, then chunks: payload_bytes u32, crc32c u32 of the payload, payload (msgpack). Entries
    published later follow as chunks of one entry. A chunk with a wrong checksum ends the list.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / INDEX_NAME
        self._fd = -1
        self._good_bytes = 0  # length of the file before the first chunk with a wrong checksum
        self._listed_count = 0

    def read(self) -> dict[str, Record]:
        """Return the listed entries by name; the last published or used entry comes last."""
        records: dict[str, Record] = {}
        with contextlib.suppress(OSError, ValueError, LookupError):
            for chunk, end in _chunks(self._path.read_bytes()):
                fresh, known_count = _records(chunk), len(records)
                records.update((record.name, record) for record in fresh)
                if len(records) < known_count + len(fresh):
                    for record in fresh:  # listed again: the last position counts
                        del records[record.name]
                        records[record.name] = record
                self._listed_count += len(fresh)
                self._good_bytes = end
        return records

    def resume(self, records: Sequence[Record]) -> None:
        """Continue the list that was read, or rewrite it if most of it is not among ``records``."""
        if self._good_bytes and self._listed_count <= 2 * len(records) + _CHUNK_ENTRIES:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.ftruncate(self._fd, self._good_bytes)
                return
        self.start(records)

    def start(self, records: Iterable[Record]) -> None:
        """Write the list anew and keep it open for entries published later."""
        self.close()
        temp = self._path.with_name(f"{INDEX_NAME}.new")
        try:
            fd = os.open(
                temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            self._forget()
            return
        try:
            _write(fd, _HEAD)
            for chunk in _in_chunks(records):
                _write(fd, _framed(chunk))
            temp.rename(self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                temp.unlink()
            self._forget()
        else:
            self._fd = fd

    def add(self, record: Record) -> None:
        """Append one entry."""
        if self._fd < 0:
            return
        try:
            _write(self._fd, _framed([record]))
        except OSError:
            self.close()  # a reader could not read past a torn chunk

    def close(self) -> None:
        """Close the list's file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _chunks(data: bytes) -> Iterator[tuple[_Chunk, int]]:
    """Yield each chunk with its end offset."""
    if not data.startswith(_HEAD):
        return
    view, at = memoryview(data), len(_HEAD)
    while at + _FRAME.size <= len(view):
        size, crc = _FRAME.unpack_from(view, at)
        payload = view[at + _FRAME.size : at + _FRAME.size + size]
        if len(payload) != size or crc32c(payload) != crc:
            return
        at += _FRAME.size + size
        yield _decoder.decode(payload), at


def _records(chunk: _Chunk) -> list[Record]:
    """Return a chunk's records, built column by column because there may be a million.

    Raises:
        LookupError, ValueError: the columns do not fit together.
    """
    digits, width = chunk.names.hex(), 2 * _NAME_BYTES
    names = [digits[at : at + width] for at in range(0, len(digits), width)]
    columns = (chunk.keys, chunk.etags, chunk.sizes, chunk.run_at, chunk.root_at)
    if any(len(column) != len(names) for column in columns):
        raise ValueError(f"expected columns of {len(names)} rows, got {[len(column) for column in columns]}")
    roots = map(_texts(chunk.roots).__getitem__, chunk.root_at)
    make = entry_layout.ref_of if any(b"\0" in etag for etag in chunk.etags) else ObjectRef
    refs = map(make, roots, _texts(chunk.keys), chunk.sizes, _texts(chunk.etags))
    runs = [chunk.runs[at] for at in chunk.run_at]
    return list(map(Record, names, refs, map(itemgetter(0), runs), map(itemgetter(1), runs)))


def _in_chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == _CHUNK_ENTRIES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _framed(records: list[Record]) -> bytes:
    runs = list(dict.fromkeys((record.boot, record.run) for record in records))
    roots = list(dict.fromkeys(record.ref.root for record in records))
    run_at = {run: index for index, run in enumerate(runs)}
    root_at = {root: index for index, root in enumerate(roots)}
    chunk = _Chunk(
        runs,
        [_coded(root) for root in roots],
        bytes.fromhex("".join(record.name for record in records)),
        [_coded(record.ref.key) for record in records],
        [_coded(entry_layout.version_of(record.ref)) for record in records],
        [record.ref.size_bytes for record in records],
        [run_at[record.boot, record.run] for record in records],
        [root_at[record.ref.root] for record in records],
    )
    payload = msgspec.msgpack.encode(chunk)
    return _FRAME.pack(len(payload), crc32c(payload)) + payload


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _texts(coded: Sequence[bytes]) -> list[str]:
    try:
        return list(map(bytes.decode, coded))
    except UnicodeDecodeError:
        return [text.decode("utf-8", "surrogatepass") for text in coded]


def record_of(ref: ObjectRef, boot: bytes, run: bytes) -> Record:
    """Return an entry's record."""
    return Record(entry_layout.name_of(ref), ref, boot, run)


def boot_id() -> bytes:
    """Return 16 bytes that change when the kernel starts; zeros if the boot id cannot be read."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text("ascii").strip().replace("-", ""))[:_RUN_BYTES].ljust(_RUN_BYTES, b"\0")
    except (OSError, ValueError):
        return bytes(_RUN_BYTES)


class RunLedger:
    """The runs whose data is known to be on the disk: which entries can be trusted after the machine went down.

    Fills are renamed into place without fsync, so a power cut can leave a good header over lost data. Headers therefore
    name the boot and the run that wrote them. Within one boot the page cache is the truth. After another boot, only
    runs that flushed the file system at their end count. ``<directory>/flushed`` lists those runs.
    """

    def __init__(self, directory: Path, boot: bytes | None = None) -> None:
        self._path = directory / FLUSHED_NAME
        self.boot = boot_id() if boot is None else boot
        self.run = secrets.token_bytes(_RUN_BYTES)
        self._flushed = frozenset(_read(self._path))

    def believes(self, header: Header) -> bool:
        """Whether the data under a good header is known to be what was written."""
        return self.holds(header.boot, header.run)

    def holds(self, boot: bytes, run: bytes) -> bool:
        """Whether the data that ``run`` wrote during ``boot`` is known to be on the disk."""
        return boot == self.boot or run in self._flushed

    def flush(self, seen_runs: Iterable[bytes]) -> None:
        """Flush the file system and list the runs whose entries still exist, this run included.

        Raises:
            CacheUnavailable: the flush failed; the list is unchanged then.
        """
        temp = self._path.with_name(f"{FLUSHED_NAME}.new")
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                sync_file_system(fd)
                os.write(fd, b"".join(run.hex().encode() + b"\n" for run in sorted({*seen_runs, self.run})))
                os.fsync(fd)
            finally:
                os.close(fd)
            temp.rename(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise os_errors.unavailable(error, self._path) from error


def _read(path: Path) -> list[bytes]:
    try:
        return [bytes.fromhex(line) for line in path.read_text("ascii").split()]
    except (OSError, ValueError):
        return []  # no earlier run is trusted then: more is fetched, nothing wrong is served


def sync_file_system(fd: int) -> None:
    """Write everything that the file system of a descriptor holds in memory to its disk. Blocks.

    Raises:
        OSError: the disk refused it.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # releases the interpreter lock while it waits
    if libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
    listed, others, broken_count = _find(options.directory, ledger, listing.read())
    sizes = [entry_layout.disk_bytes(record.ref) for record in listed] + [file.disk_bytes for file in others]
    max_bytes = limit_bytes(options, sum(sizes))
    surplus_count = _surplus_count(sizes, max_bytes)
    kept, unindexed = listed[surplus_count:], others[max(0, surplus_count - len(listed)) :]
    for record in listed[:surplus_count]:
        files.remove(entry_layout.file_path(options.directory, record.ref))
    for file in others[: len(others) - len(unindexed)]:
        files.remove(file.path)
    index = CacheIndex(max_bytes, Quotas(options.quotas))
    kept_sizes = sizes[surplus_count : len(listed)]
    refused = index.adopt_all((record.ref, size) for record, size in zip(kept, kept_sizes, strict=True))
    for ref in refused:  # by a quota that is smaller now
        files.remove(entry_layout.file_path(options.directory, ref))
    listing.resume(kept)
    runs = {record.ref: (record.boot, record.run) for record in kept}
    opened = Opened(index, tuple(unindexed), broken_count, surplus_count + len(refused))
    return Taken(opened, ledger, listing, runs)


def identify(directory: Path, ledger: RunLedger, unindexed: Sequence[UnindexedFile]) -> list[entry_layout.Header]:
    """Return the headers of the good files; broken files are removed.

    Raises:
        CacheUnavailable: a broken file cannot be removed.
    """
    headers = []
    for file in unindexed:
        found = files.examine(directory, file.path)
        if found is None:
            continue
        if found.header is not None and ledger.believes(found.header):
            headers.append(found.header)
        else:
            files.remove(found.path)
    return headers


def _find(
    directory: Path, ledger: RunLedger, records: dict[str, Record]
) -> tuple[list[Record], list[UnindexedFile], int]:
    """Sort the files of the directory; remove unfinished fills and entries of other formats or of lost runs.

    Returns:
        Listed files in the order of their last use, other files by age, the oldest first, and how many were removed.
    """
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
    unindexed.sort(key=lambda file: file.written_s)
    if len(present) == len(believed):
        return list(believed.values()), unindexed, broken_count
    return [record for name, record in believed.items() if name in present], unindexed, broken_count


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
