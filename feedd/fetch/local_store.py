"""Local files as a store, with a pool of threads for each mount, so that a mount that hangs stops no reads of another.

A daemon that several users share must not read for one user what only another may read. A path is therefore opened
folder by folder, each relative to the descriptor of the one above, so that no link is followed and no folder can be
exchanged in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

from feedd.errors import (
    BadResponse,
    CacheUnavailable,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
)
from feedd.fetch.hints import CHANGED_HINT, PATH_HINTS
from feedd.flow.file_pipe import PIPE_BYTES, FilePipe
from feedd.flow.file_writing import write_in
from feedd.flow.mounts import mount_of, read_mounts
from feedd.flow.pools import Pool
from feedd.flow.range_sinks import FileSink, MemorySink
from feedd.units import MIB
from feedd.values import ObjectChecksum, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from feedd.flow.mounts import Mount
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

    _Take = Callable[[int, int], int]

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK, opening a FIFO waits for its writer
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RENEW_S: Final = 30.0
P = ParamSpec("P")
T = TypeVar("T")
_ROOT = "file://"
_DRAFT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PAGE_COUNT = 1000
_HOT_BYTES = MIB // 4  # fits into the CPU cache; a cancelled read ends after at most one of these pieces


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a folder.

    Attributes:
        path: absolute path; folders end with a slash.
        status: status of a regular file; None: a folder.
    """

    path: bytes
    status: os.stat_result | None


class FileTree(Protocol):
    """Opens local paths. Every method raises OSError."""

    def open(self, path: str) -> int:
        """Return a descriptor to read a file."""

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder."""

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``, sorted by path."""


class Anywhere:
    """Every path that this process may open; links are followed."""

    def open(self, path: str) -> int:
        """Return a descriptor to read a file."""
        return os.open(path, _READ)

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder."""
        return Path(path).stat()

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``, sorted by path."""
        with os.scandir(folder) as entries:
            found = [_found(os.fsencode(entry.path), entry, wanted, follow=True) for entry in entries]
        return sorted((one for one in found if one is not None), key=lambda one: one.path)


class Beneath:
    """Paths below certain folders. Links below these folders are not followed; the folders themselves may be links.

    Args:
        folders: absolute paths with a final slash; a path of a file, also with a slash, means that file.
    """

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders

    def open(self, path: str) -> int:
        """Return a descriptor to read a file.

        Raises:
            PermissionError: the path is not below one of the folders, or leads through a link.
        """
        return self._opened(path, _READ)

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder, without following a link."""
        fd = self._opened(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``; links are left out."""
        fd = self._opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        start = os.fsencode(folder.rstrip("/")) + b"/"
        try:
            with os.scandir(fd) as entries:
                found = [_found(start + os.fsencode(entry.name), entry, wanted, follow=False) for entry in entries]
        finally:
            os.close(fd)
        return sorted((one for one in found if one is not None), key=lambda one: one.path)

    def _opened(self, path: str, flags: int) -> int:
        wanted = path.rstrip("/") + "/"
        tops = [top for top in self._folders if wanted.startswith(top)]
        if not tops:
            raise PermissionError(errno.EACCES, "not below a folder that clients may read")
        top = max(tops, key=len)
        parts = wanted.removeprefix(top).split("/")[:-1]
        if ".." in parts:
            raise PermissionError(errno.EACCES, "clients may not use .. in paths")
        if not parts:
            return os.open(top.rstrip("/") or "/", flags)
        with _folder(top, parts[:-1]) as above, _no_links(path):
            return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=above)


@contextmanager
def _folder(top: str, parts: list[str]) -> Iterator[int]:
    """Yield the descriptor of the folder that ``parts`` lead to from ``top``."""
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, parts):
            above, fd = fd, os.open(part, _FOLDER, dir_fd=fd)
            os.close(above)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _no_links(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PermissionError(
            errno.EACCES, "links are not followed below folders that clients may read", path
        ) from error


def _found(path: bytes, entry: os.DirEntry[str], wanted: Callable[[bytes], bool], *, follow: bool) -> Found | None:
    """Return an entry of a folder; None: it is not wanted, or neither a folder nor a regular file."""
    if entry.is_dir(follow_symlinks=follow):
        return Found(path + b"/", None) if wanted(path + b"/") else None
    if not wanted(path) or not entry.is_file(follow_symlinks=follow):
        return None
    return Found(path, entry.stat(follow_symlinks=follow))


class MountPools:
    """The pools of one kind of work, by mount point. Used on one thread.

    A path through a link counts as one of the mount that the link lies on, because following the link may hang.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        """Start without pools.

        Args:
            name: of the threads.
            threads_max: upper bound of the threads of each mount.
        """
        self._name = name
        self._threads_max = threads_max
        self._mounts: list[Mount] = []
        self._pools: dict[str, Pool] = {}
        self._renew_at_s = 0.0

    def of(self, path: str) -> Pool:
        """Return the pool for an absolute path."""
        if (now_s := time.monotonic()) >= self._renew_at_s:
            self._renew_at_s = now_s + _RENEW_S
            self._renew()
        mount = mount_of(path, self._mounts)
        point = "/" if mount is None else mount.point
        if (pool := self._pools.get(point)) is None:
            pool = self._pools[point] = Pool(self._name, self._threads_max)
        return pool

    def _renew(self) -> None:
        """Read the table of mounts again, and forget the pools of mounts that are gone; their threads end when idle."""
        try:
            self._mounts = read_mounts()
        except OSError:
            return  # no procfs: one pool for all
        kept = {"/", *(mount.point for mount in self._mounts)}
        self._pools = {point: pool for point, pool in self._pools.items() if point in kept}


_ANYWHERE = Anywhere()


class LocalStore:
    """The file system; keys are absolute paths. Blocking calls run on a bounded pool of threads for each mount.

    A cancelled call returns at once, even if its thread hangs; the thread then ends by itself and changes nothing more.

    An object's etag is made of size, mtime and inode: a file that is rewritten in place or replaced is another version.
    """

    def __init__(self, thread_count: int = 8, folders: tuple[str, ...] | None = None) -> None:
        """Open nothing yet.

        Args:
            thread_count: upper bound of threads that read from one mount.
            folders: read only below them, see ``Beneath``; None: anywhere.
        """
        self._tree: FileTree = Anywhere() if folders is None else Beneath(folders)
        self._pools = MountPools("files", thread_count)
        # Separate pools, so that a hanging cache disk does not block reads that do not use the disk.
        self._to_disk = MountPools("files-to-disk", thread_count)

    def __repr__(self) -> str:
        return f"LocalStore({self.root})"

    @property
    def root(self) -> str:
        """The root URL, ``file://``."""
        return _ROOT

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages of regular files whose path starts with ``prefix``; see ``ObjectStore.list``.

        Links are followed; a link back to a directory it lies in is not entered again.

        Raises:
            NotFound: the directory part of ``prefix`` does not exist.
        """
        found = _files_below(self._tree, prefix, start_after)
        while page := await self._in_thread(prefix, lambda: list(islice(found, _PAGE_COUNT))):
            yield page

    async def head(self, key: str) -> ObjectRef:
        """Return the current version of one file; see ``ObjectStore.head``."""
        return await self._in_thread(key, _head, key, self._tree)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:  # noqa: ARG002 - the seam's
        """Return None, because files have no stored checksum."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read a range on a thread; see ``ObjectStore.read_into``."""
        if isinstance(sink, FileSink):
            await self._into_file(ref, span, sink)
        else:
            assert isinstance(sink, MemorySink), "a sink is a file or memory"
            await self._into_memory(ref, span, sink)
        if progress is not None:
            progress.filled_bytes = span.size_bytes

    async def close(self) -> None:
        """Do nothing: idle threads end by themselves."""

    async def _into_file(self, ref: ObjectRef, span: ByteRange, sink: FileSink) -> None:
        """Copy a range from file to file. After a cancellation, a running step is not waited for."""
        stop = threading.Event()
        pools = self._to_disk if sink.waits_for_disk else self._pools
        try:
            await write_in(pools.of(ref.key), sink.file.writers, _read_to_file, self._tree, ref, span, sink, stop)
        except OSError as error:
            raise path_error(error, ref.key) from error
        except asyncio.CancelledError:
            stop.set()
            raise

    async def _into_memory(self, ref: ObjectRef, span: ByteRange, sink: MemorySink) -> None:
        """Read a range into memory. A cancellation takes the memory back from a thread that still reads."""
        stop = threading.Event()
        memory = CallerMemory(sink.memory)
        try:
            await self._in_thread(ref.key, _read, self._tree, ref, span, _into_memory(memory, span), stop)
        finally:
            stop.set()
            memory.take_back()

    async def _in_thread(self, path: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work``, which reads ``path``, in a thread of its mount."""
        try:
            return await self._pools.of(path).run(work, *args, **kwargs)
        except OSError as error:
            raise path_error(error, path) from error


class CallerMemory:
    """Memory of a caller that a thread fills. The caller can take it back while the thread waits for a file."""

    def __init__(self, memory: memoryview) -> None:
        self._memory: memoryview | None = memory
        self._guard = threading.Lock()  # held while bytes are copied, never while anything is read

    def put(self, at: int, data: memoryview) -> None:
        """Copy bytes to an offset, unless the memory was taken back."""
        with self._guard:
            if self._memory is not None:
                self._memory[at : at + len(data)] = data

    def take_back(self) -> None:
        """Release the memory; later bytes are dropped."""
        with self._guard:
            if self._memory is not None:
                self._memory.release()
                self._memory = None


def read_files(refs: Iterable[ObjectRef], memory: memoryview) -> Iterator[memoryview]:
    """Read whole files into memory, each right behind the one before, and yield the bytes of each. Blocks.

    Raises:
        ObjectChanged: a file is another version now.
        NotFound, PermissionDenied, StoreUnavailable, BadResponse: a file cannot be read.
    """
    at = 0
    for ref in refs:
        start, end = at, at + ref.size_bytes
        try:
            file = os.open(ref.key, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while at < end:
                    count = os.readv(file, [memory[at:end]])
                    if not count:  # the version tells more than the length
                        break
                    at += count
                _check_tag(file, ref)  # after the reads: their bytes are this version's, or an error follows
                if at < end:
                    message = f"expected {ref.size_bytes} bytes, got {ref.size_bytes - (end - at)}"
                    raise BadResponse(message, object=ref.key, stage="source")
            finally:
                os.close(file)
        except OSError as error:
            raise path_error(error, ref.key) from error
        yield memory[start:end]


def write_file(path: str, data: bytes, over: str | None = None) -> ObjectRef:
    """Create or replace a file atomically and return its ref. Blocks.

    Args:
        path: absolute path.
        data: the whole content.
        over: etag of the version to replace; empty: the file must not exist; None: replace any version.

    Raises:
        ObjectChanged: another version exists, or a version exists although none was expected.
        NotFound, PermissionDenied, StoreUnavailable: the file cannot be written.
    """
    draft = f"{path}.{secrets.token_hex(8)}.new"
    try:
        # always a new file: a link that another process puts at this path is not followed
        with open(os.open(draft, _DRAFT_FLAGS, 0o666), "wb") as file:  # noqa: PTH123 - by descriptor
            file.write(data)
        with contextlib.nullcontext() if over is None else _folder_locked(Path(path).parent):
            if over is not None:
                _check_is(path, over)
            Path(draft).replace(path)
            return _head(path)
    except OSError as error:
        raise path_error(error, path, "written") from error
    finally:
        with contextlib.suppress(OSError):  # after a successful replace the draft no longer exists
            Path(draft).unlink()


@contextlib.contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder. File systems without locks, such as some network ones, lock nothing."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _check_is(path: str, etag: str) -> None:
    try:
        got = _head(path).etag
    except FileNotFoundError:
        got = ""
    if got != etag:
        message = f"expected version {etag or 'none'}, got {got or 'none'}"
        raise ObjectChanged(message, object=path, hint=CHANGED_HINT, stage="source")


def path_error(error: OSError, path: str, use: str = "read") -> FeeddError:
    """Return feedd's error for an error of the system about a path that was to be read, or ``use``."""
    kinds: dict[type[OSError], type[FeeddError]] = {
        FileNotFoundError: NotFound,
        NotADirectoryError: NotFound,
        PermissionError: PermissionDenied,
    }
    kind = kinds.get(type(error), StoreUnavailable)
    hint = PATH_HINTS.get(error.errno or 0, "")
    return kind(f"the path cannot be {use}: {error.strerror}", object=path, hint=hint, stage="source")


def file_etag(status: os.stat_result) -> str:
    """Return the version tag of a file with this status."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


def _head(path: str, tree: FileTree = _ANYWHERE) -> ObjectRef:
    status = tree.status(path)
    if not stat.S_ISREG(status.st_mode):
        raise NotFound("expected a regular file, got a directory or special file", object=path, stage="source")
    return ObjectRef(_ROOT, path, status.st_size, file_etag(status))


def _into_memory(memory: CallerMemory, span: ByteRange) -> _Take:
    buffer = memoryview(bytearray(min(_HOT_BYTES, span.size_bytes)))

    def take(file: int, at: int) -> int:
        count = os.preadv(file, [buffer[: span.size_bytes - at]], span.start + at)
        memory.put(at, buffer[:count])
        return count

    return take


def _read_to_file(tree: FileTree, ref: ObjectRef, span: ByteRange, sink: FileSink, stop: threading.Event) -> None:
    """Read a range to a file: inside the kernel if that file is memory and nothing needs to see the bytes."""
    pipe = None
    if sink.file.in_memory and not sink.wants_written:
        with contextlib.suppress(OSError):  # no descriptor is left
            pipe = FilePipe()
    if pipe is None:
        _read(tree, ref, span, _into_file(sink, span), stop)
        return
    with pipe:
        _read(tree, ref, span, _through(pipe, sink, span), stop)


def _through(pipe: FilePipe, sink: FileSink, span: ByteRange) -> _Take:
    read = _into_file(sink, span)

    def take(file: int, at: int) -> int:
        try:
            count = pipe.take(file, span.start + at, min(span.size_bytes - at, PIPE_BYTES))
        except OSError:
            return read(file, at)  # some file systems have no such call; other errors are met again
        try:
            pipe.put(sink.file.fd, sink.offset + at, count)
        except OSError as error:
            raise _unwritable(error) from error
        return count

    return take


def _unwritable(error: OSError) -> CacheUnavailable:
    return CacheUnavailable(f"the cache file cannot be written: {error.strerror}", stage="source")


def _into_file(sink: FileSink, span: ByteRange) -> _Take:
    buffer = memoryview(bytearray(min(_HOT_BYTES, span.size_bytes)))

    def take(file: int, at: int) -> int:
        count = os.preadv(file, [buffer[: span.size_bytes - at]], span.start + at)
        try:
            sink.write_now(at, buffer[:count])
        except OSError as error:
            raise _unwritable(error) from error
        return count

    return take


def _read(tree: FileTree, ref: ObjectRef, span: ByteRange, take: _Take, stop: threading.Event) -> None:
    """Read a range piece by piece; ``take(file, at)`` reads at offset ``at`` of the range and returns a byte count."""
    file = tree.open(ref.key)
    try:
        _check_tag(file, ref)
        at = 0
        while at < span.size_bytes and not stop.is_set():
            count = take(file, at)
            if count == 0:
                message = f"expected {span.size_bytes} bytes at {span.start}, got {at}"
                raise BadResponse(message, object=ref.key, stage="source")
            at += count
        _check_tag(file, ref)  # bytes read while the file changed belong to no version
    finally:
        os.close(file)


def _check_tag(file: int, ref: ObjectRef) -> None:
    got = file_etag(os.fstat(file))
    if got != ref.etag:
        message = f"expected version {ref.etag}, got {got}"
        raise ObjectChanged(message, object=ref.key, hint=CHANGED_HINT, stage="source")


def _files_below(tree: FileTree, prefix: str, start_after: str) -> Iterator[ObjectRef]:
    """Yield the files under ``prefix`` in byte order of their full paths."""
    top = prefix[: prefix.rindex("/") + 1] if "/" in prefix else "/"
    return _enter(tree, top, _wanted(os.fsencode(prefix), os.fsencode(start_after)), frozenset())


def _wanted(prefix: bytes, after: bytes) -> Callable[[bytes], bool]:
    """Return a function: may a file, or any file of a folder, lie under ``prefix`` and after ``after``?"""

    def wanted(path: bytes) -> bool:
        if path.endswith(b"/"):
            inside = path.startswith(prefix) or prefix.startswith(path)
            return inside and not (path < after and not after.startswith(path))
        return path.startswith(prefix) and path > after

    return wanted


def _enter(
    tree: FileTree, top: str, wanted: Callable[[bytes], bool], above: frozenset[tuple[int, int]]
) -> Iterator[ObjectRef]:
    status = tree.status(top)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for found in tree.scan(top, wanted):  # a folder sorts as "name/", which puts full paths in order
        if found.status is None:
            yield from _enter(tree, os.fsdecode(found.path), wanted, above | {here})
        else:
            yield ObjectRef(_ROOT, os.fsdecode(found.path), found.status.st_size, file_etag(found.status))
