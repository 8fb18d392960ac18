"""Operations on files of the cache, and whether a file still holds what was written. Blocking: called in threads.

Files are verified with ``preadv`` into a reused buffer. A failing disk is then an ``OSError``, while under a mapping it
would kill the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from dataclasses import dataclass
from struct import iter_unpack
from typing import TYPE_CHECKING, Final

from awscrt.checksums import crc32c

from feedd.cache import entry_layout, os_errors
from feedd.cache.os_errors import StorageFull
from feedd.cache.storage import Depth, Finding
from feedd.flow.sink_file import OpenFile, SinkFile, write_at
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from feedd.cache.entry_layout import Header
    from feedd.values import ObjectRef

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # errors that say nothing about the file
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_memory = threading.local()


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the cache, found in its directory.

    Attributes:
        path: the file.
        header: the file's header; None: broken or unfinished.
        written_s: time of the last write, seconds since the Unix epoch.
    """

    path: Path
    header: Header | None
    written_s: float


def open_files(wanted: Sequence[tuple[Path, ObjectRef]]) -> list[OpenFile | Finding]:
    """Open files for reading; a file of another length than its entry has vanished, one of another entry is torn.

    Raises:
        CacheUnavailable: this process is out of descriptors or memory.
    """
    return [_opened(path, ref) for path, ref in wanted]


def check_files(wanted: Sequence[tuple[Path, ObjectRef]]) -> list[Finding]:
    """Open files one after the other and close them again: ``WHOLE`` if a file can be opened and has its length.

    Raises:
        CacheUnavailable: this process is out of descriptors or memory.
    """
    found = []
    for path, ref in wanted:
        file = _opened(path, ref)
        found.append(file if isinstance(file, Finding) else Finding.WHOLE)
    return found


def _opened(path: Path, ref: ObjectRef) -> OpenFile | Finding:
    try:
        file = OpenFile(os.open(path, _READ))
        if not has_length(os.fstat(file.fd), ref):
            return Finding.VANISHED
    except OSError as error:
        return finding(error, path)
    header = read_header(file.fd)  # another entry's file of the same length may lie at this path
    return file if header is not None and header.ref == ref else Finding.TORN


def finding(error: OSError, path: Path) -> Finding:
    """Return what an error says about an entry's file.

    Raises:
        CacheUnavailable: this process is out of descriptors or memory.
    """
    if error.errno in _OURS:
        raise os_errors.unavailable(error, path) from error
    return Finding.VANISHED if error.errno in _GONE else Finding.UNREADABLE


def has_length(status: os.stat_result, ref: ObjectRef) -> bool:
    """Whether a file is a regular one of an entry's length."""
    return stat.S_ISREG(status.st_mode) and status.st_size == entry_layout.data_at(ref) + ref.size_bytes


def is_at(path: Path, fd: int) -> bool:
    """Whether a path leads to the open file."""
    try:
        here, ours = path.lstat(), os.fstat(fd)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino)


def free_bytes(directory: Path) -> int:
    """Return the bytes an unprivileged user may still write to the file system.

    Raises:
        OSError: the file system cannot be queried.
    """
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize


def create(path: Path, size_bytes: int, reserve_bytes: int) -> SinkFile:
    """Create a fully allocated file; a failure leaves nothing behind.

    The file is allocated first: workers map it, and a hole of a mapped file on a full disk ends them with SIGBUS.

    Raises:
        StorageFull: there is no room for the file and the reserve.
        CacheUnavailable: the directory cannot be written.
    """
    try:
        fd = _created(path, size_bytes, reserve_bytes)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return SinkFile(fd)
        except BaseException:
            remove(path)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        if os_errors.is_full(error):
            raise StorageFull(size_bytes, _free_or_zero(path.parent), reserve_bytes) from error
        raise os_errors.unavailable(error, path.parent) from error


def _created(path: Path, size_bytes: int, reserve_bytes: int) -> int:
    """Create an empty file; if the file system has no inodes left, give it those of empty folders."""
    try:
        try:
            return _new(path, size_bytes, reserve_bytes)
        except FileNotFoundError:
            # All folders of the cache, since another process may have removed them.
            for folder in reversed((path.parent, *path.parents[1:3])):
                folder.mkdir(mode=0o700, exist_ok=True)
            return _new(path, size_bytes, reserve_bytes)
    except OSError as error:
        if not os_errors.is_full(error) or not _emptied(path.parents[1]):
            raise
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, _NEW, 0o600)


def _new(path: Path, size_bytes: int, reserve_bytes: int) -> int:
    available = free_bytes(path.parent)
    if available - size_bytes < reserve_bytes:
        raise StorageFull(size_bytes, available, reserve_bytes)
    return os.open(path, _NEW, 0o600)


def _emptied(top: Path) -> int:
    """Remove the empty folders of the cache; return how many."""
    count = 0
    for name in filter(entry_layout.is_folder_name, _names(top)):
        with contextlib.suppress(OSError):  # it has files
            (top / name).rmdir()
            count += 1
    return count


def publish(file: SinkFile, header: bytes, temp: Path, final: Path, *, is_kept: bool = False) -> OpenFile | None:
    """Write the header of a filled file and rename the file to its final name.

    Returns:
        The file, open for reading, if it ``is_kept``; None: it is closed, also if it cannot be opened.

    Raises:
        CacheUnavailable: the file cannot be written or renamed, for example because the directory was removed
            meanwhile.
    """
    try:
        write_at(file.fd, memoryview(header), 0)
        file.close()
        temp.rename(final)
    except OSError as error:
        raise os_errors.unavailable(error, final) from error
    with contextlib.suppress(OSError):  # a reader opens it, or learns why that fails
        return OpenFile(os.open(final, _READ)) if is_kept else None
    return None


def remove(*paths: Path) -> None:
    """Unlink files; missing files are fine.

    Raises:
        CacheUnavailable: a file cannot be removed; all others are tried first.
    """
    failure: tuple[OSError, Path] | None = None
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            continue  # its folder was replaced by something else, so the file is gone
        except OSError as error:
            failure = error, path
    if failure is not None:
        raise os_errors.unavailable(*failure) from failure[0]


def folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders of one cache format, each with all names in it, foreign ones included.

    Raises:
        CacheUnavailable: the directory cannot be read. A missing or empty directory yields nothing.
    """
    try:
        for name in _names(top):
            if entry_layout.is_folder_name(name):
                yield top / name, _names(top / name)
    except OSError as error:
        raise os_errors.unavailable(error, top.parent) from error


def is_ours(name: str) -> bool:
    """Whether a file has the name pattern of an entry or of an unfinished fill."""
    return entry_layout.is_entry_name(name) or entry_layout.is_temp_name(name)


def examine_all(directory: Path) -> Iterator[Found]:
    """Yield every file of the cache in ``directory``, examined; foreign files are skipped.

    Raises:
        CacheUnavailable: the directory cannot be read. A missing or empty directory yields nothing.
    """
    for folder, names in folders(directory / entry_layout.FORMAT_FOLDER):
        for name in filter(is_ours, sorted(names)):
            found = examine(directory, folder / name)
            if found is not None:
                yield found


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names, not a Path object for each of a million
    except (FileNotFoundError, NotADirectoryError):
        return []


def examine(directory: Path, path: Path) -> Found | None:
    """Examine a file that has a name of the cache; None: it is gone, or not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None  # removed since the listing
    except OSError:
        return Found(path, None, 0.0) if path.is_file() and not path.is_symlink() else None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        header = None if entry_layout.is_temp_name(path.name) else read_header(fd)
        if header is not None:
            moved = entry_layout.file_path(directory, header.ref) != path
            header = None if moved or status.st_size != header.file_bytes else header
        return Found(path, header, status.st_mtime)
    finally:
        os.close(fd)


def read_header(fd: int) -> Header | None:
    """Return the header of an open file, or None if it is torn or unreadable and must be fetched again."""
    try:
        page = os.pread(fd, entry_layout.PAGE_BYTES, 0)
        size = entry_layout.header_bytes(page)
        if size is not None and size > len(page):
            page = os.pread(fd, size, 0)
    except OSError:
        return None
    return entry_layout.unpack_header(page)


def _free_or_zero(directory: Path) -> int:
    try:
        return free_bytes(directory)
    except OSError:
        return 0


def look(wanted: Sequence[tuple[Path, ObjectRef]], depth: Depth, believes: Callable[[Header], bool]) -> list[Finding]:
    """Verify files; ``believes`` tells whether the data under a good header can be trusted.

    Raises:
        CacheUnavailable: this process is out of descriptors or memory.
    """
    return [_look(path, ref, depth, believes) for path, ref in wanted]


def _look(path: Path, ref: ObjectRef, depth: Depth, believes: Callable[[Header], bool]) -> Finding:
    try:
        if depth is Depth.LENGTH:
            return _of_length(os.stat(path, follow_symlinks=False), ref)  # noqa: PTH116 - once per shard and batch: no Path overhead
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return _of_length(os.fstat(fd), ref, lambda: _of_content(fd, ref, depth, believes))
        finally:
            os.close(fd)
    except OSError as error:
        return finding(error, path)


def _of_length(status: os.stat_result, ref: ObjectRef, further: Callable[[], Finding] | None = None) -> Finding:
    if not has_length(status, ref):
        return Finding.VANISHED
    return further() if further is not None else Finding.WHOLE


def _of_content(fd: int, ref: ObjectRef, depth: Depth, believes: Callable[[Header], bool]) -> Finding:
    header = read_header(fd)
    if header is None or header.ref != ref or not believes(header):
        return Finding.TORN
    if depth is Depth.HEADER:
        return Finding.WHOLE
    return Finding.WHOLE if _blocks_match(fd, header) else Finding.TORN


def _blocks_match(fd: int, header: Header) -> bool:
    """Return whether every block matches its checksum.

    Raises:
        OSError: the disk failed.
    """
    buffer = _buffer()
    block = entry_layout.block_bytes(header.ref.size_bytes)
    at, end = header.data_at, header.file_bytes
    for (expected,) in iter_unpack("<I", header.sums):
        block_end, got = min(at + block, end), 0
        while at < block_end:
            piece = buffer[: min(len(buffer), block_end - at)]
            count = os.preadv(fd, (piece,), at)
            if not count:
                return False  # truncated since its length was read
            got = crc32c(piece[:count], got)
            at += count
        if got != expected:
            return False
    return True


def _buffer() -> memoryview:
    buffer: memoryview | None = getattr(_memory, "buffer", None)
    if buffer is None:
        buffer = _memory.buffer = memoryview(bytearray(MIB))
    return buffer
