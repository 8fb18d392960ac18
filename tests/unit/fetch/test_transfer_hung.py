"""Bodies on their way into a file whose disk hangs, and transfer threads that fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.errors import CacheUnavailable
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3 import transfer as s3_transfer
from feedd.fetch.s3.bodies import Files
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.fetch.s3.transfer import TransferThread, TransferThreads
from feedd.flow.file_writing import left_alone
from feedd.flow.range_sinks import FileSink
from feedd.flow.sink_file import SinkFile, is_in_memory
from feedd.values import ReadProgress
from tests.budget import PATIENT_S
from tests.fakes.disks import FrozenDisk, HeldWrites, frozen_disk
from tests.fakes.fetchers import until
from tests.fakes.raw_server import RawServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.flow.range_sinks import Written

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = os.urandom(3 << 20)
SMALL = LARGE[: 100 << 10]
TURNS = 200


def _answer(body: bytes) -> bytes:
    return f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture(params=["held", "frozen"])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HeldWrites | FrozenDisk]:
    """A disk that hangs when told to: calls that are held in this process, and a real file system that is frozen."""
    with frozen_disk(tmp_path) if request.param == "frozen" else HeldWrites(tmp_path).under(monkeypatch) as disk:
        yield disk


def descriptors() -> set[str]:
    """Return what is open."""
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        return set(os.listdir(listing)) - {str(listing)}  # noqa: PTH208 - of a descriptor that is known
    finally:
        os.close(listing)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[SinkFile]:
    os.posix_fallocate(fd, 0, len(LARGE))
    file = SinkFile(fd)
    os.close(fd)
    file.in_memory = str(Path(f"/proc/self/fd/{file.fd}").readlink()).startswith("/memfd")
    yield file
    file.close()


@pytest.fixture
def on_disk(disk: HeldWrites | FrozenDisk) -> Iterator[SinkFile]:
    """A file on a disk that hangs."""
    with _opened(os.open(disk.folder / "file", os.O_RDWR | os.O_CREAT)) as file:
        disk.hang()
        yield file


@pytest.fixture
def on_good_disk(tmp_path: Path) -> Iterator[SinkFile]:
    """A file on a disk that is well."""
    with _opened(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)) as file:
        yield file


@pytest.fixture
def in_memory() -> Iterator[SinkFile]:
    """A file in memory."""
    with _opened(os.memfd_create("test")) as file:
        yield file


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    """Movers, closed behind the test."""
    transfer_threads = TransferThreads(1)
    yield Files(transfer_threads)
    transfer_threads.close()


def _pool(server: RawServer, files: Files, read_timeout_s: float = PATIENT_S) -> ConnectionPool:
    options = SourceOptions(
        connect_timeout_s=PATIENT_S, read_timeout_s=read_timeout_s, parts_in_flight=4, hedge_share=0.0
    )
    return ConnectionPool(Endpoint(f"http://127.0.0.1:{server.port}", "127.0.0.1", server.port, None), options, files)


async def _read(
    pool: ConnectionPool,
    file: SinkFile,
    size: int,
    progress: ReadProgress | None = None,
    written: Written | None = None,
) -> bytes:
    await pool.request(REQUEST, FileSink(file, 0, size, written), lambda _: None, progress=progress)
    return os.pread(file.fd, size, 0)


@pytest.mark.parametrize("body", [LARGE, SMALL], ids=["large", "small"])
async def test_a_read_given_up_does_not_wait_for_the_disk(
    disk: HeldWrites | FrozenDisk, on_disk: SinkFile, files: Files, body: bytes
) -> None:
    """While a write hangs the loop turns, and a read that is cancelled ends at once; the file knows of the write."""
    async with RawServer(_answer(body)) as server:
        pool, progress = _pool(server, files), ReadProgress()
        reading = asyncio.ensure_future(_read(pool, on_disk, len(body), progress))
        await until(disk.holds_a_write)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert not disk.overdue
        assert not await left_alone(on_disk.writers, 0.01)
        disk.recover()
        assert await left_alone(on_disk.writers, 20)
        assert progress.filled_bytes == 0
        await pool.aclose()


async def test_a_file_stays_open_for_a_write_that_hangs(disk: HeldWrites | FrozenDisk, files: Files) -> None:
    """A draft that is given up under a write is closed when that has ended, and its descriptor means no other file."""
    async with RawServer(_answer(SMALL)) as server:
        pool = _pool(server, files)
        with _opened(os.open(disk.folder / "file", os.O_RDWR | os.O_CREAT)) as mapping:
            disk.hang()
            fd, writers = mapping.fd, mapping.writers
            reading = asyncio.ensure_future(_read(pool, mapping, len(SMALL)))
            await until(disk.holds_a_write)
            reading.cancel()
            await asyncio.wait([reading])
        os.fstat(fd)
        disk.recover()
        assert await left_alone(writers, 20)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        await pool.aclose()


@pytest.mark.parametrize("body", [LARGE, SMALL], ids=["large", "small"])
async def test_memory_is_filled_while_the_disk_hangs(
    disk: HeldWrites | FrozenDisk, on_disk: SinkFile, in_memory: SinkFile, files: Files, body: bytes
) -> None:
    """What goes past a disk that hangs passes no thread that waits for it."""
    async with RawServer(_answer(body)) as server, RawServer(_answer(body)) as other:
        pool, other_pool = _pool(server, files), _pool(other, files)
        reading = asyncio.ensure_future(_read(pool, on_disk, len(body)))
        await until(disk.holds_a_write)
        assert await _read(other_pool, in_memory, len(body)) == body
        assert not disk.overdue
        disk.recover()
        assert await reading == body
        await pool.aclose()
        await other_pool.aclose()


@pytest.mark.parametrize("body", [LARGE, SMALL], ids=["large", "small"])
async def test_silence_of_the_disk_is_not_the_stores(
    disk: HeldWrites | FrozenDisk, on_disk: SinkFile, files: Files, body: bytes
) -> None:
    """Where the disk takes nothing for as long as a store may be silent, the error is the cache's."""
    async with RawServer(_answer(body)) as server:
        pool = _pool(server, files, read_timeout_s=0.05)
        with pytest.raises(CacheUnavailable, match="the disk does not take the received bytes"):
            await _read(pool, on_disk, len(body))
        assert not disk.overdue
        disk.recover()
        assert await left_alone(on_disk.writers, 20)
        await pool.aclose()


async def test_a_connection_that_closes_behind_a_body_does_not_lose_it(
    disk: HeldWrites | FrozenDisk, on_disk: SinkFile, files: Files
) -> None:
    """A small body that has come is written, although its connection is closed before the disk has taken it."""
    async with RawServer([_answer(SMALL), b""]) as server:
        pool = _pool(server, files)
        reading = asyncio.ensure_future(_read(pool, on_disk, len(SMALL)))
        await until(disk.holds_a_write)
        await until(lambda: not pool.connections)
        disk.recover()
        assert await reading == SMALL
        await pool.aclose()


async def test_without_descriptors_a_body_fails_and_the_next_arrives(
    on_good_disk: SinkFile, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body whose transfer thread gets no pipe fails, and closes nobody's descriptors; the next one arrives."""

    def refuse(_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    async with RawServer(_answer(LARGE), _answer(LARGE)) as server:
        pool = _pool(server, files)
        monkeypatch.setattr(os, "pipe2", refuse)
        before = descriptors()
        with pytest.raises(CacheUnavailable, match="too many open files"):
            await _read(pool, on_good_disk, len(LARGE))
        monkeypatch.undo()
        assert before <= descriptors()
        assert await _read(pool, on_good_disk, len(LARGE)) == LARGE
        await pool.aclose()


async def test_a_thread_that_ends_fails_its_bodies_and_is_replaced(
    on_good_disk: SinkFile, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies of a transfer thread that ends are told so, and the next body gets another thread."""

    class Broken(Exception):
        pass

    def broken(_: TransferThread) -> None:
        raise Broken

    async with RawServer([_answer(LARGE)[:1000], None], _answer(LARGE)) as server:
        pool = _pool(server, files)
        reading = asyncio.ensure_future(_read(pool, on_good_disk, len(LARGE)))
        await until(lambda: bool(_moves_of(files)))
        (dying,) = _movers_of(files)
        monkeypatch.setattr(TransferThread, "_woken", broken)
        dying.look()
        with pytest.raises(ConnectionResetError, match="its transfer thread has ended"):
            await reading
        monkeypatch.undo()
        await until(lambda: not dying.alive)
        assert await _read(pool, on_good_disk, len(LARGE)) == LARGE
        assert dying not in _movers_of(files)
        await pool.aclose()


def _movers_of(files: Files) -> list[TransferThread]:
    assert files._transfer_threads is not None
    return files._transfer_threads._all.get(False, [])


def _moves_of(files: Files) -> list[s3_transfer.BodyTransfer]:
    return [one for each in _movers_of(files) for one in each._moves.values()]


@pytest.mark.parametrize("fault", ["watch", "checksum"])
async def test_what_fails_with_one_body_ends_that_body(
    on_good_disk: SinkFile, files: Files, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """No watch left for its socket, or a checksum that raises: one body fails, the thread goes on with the next."""

    class NoWatch:
        def __init__(self) -> None:
            self._real = select.epoll()
            self._count = 0

        def register(self, fd: int, events: int) -> None:
            self._count += 1
            if fault == "watch" and self._count == 2:  # the first is the mover's own
                raise OSError(errno.ENOSPC, "No space left on device")
            self._real.register(fd, events)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    class Select:
        epoll, EPOLLIN, EPOLLRDHUP = NoWatch, select.EPOLLIN, select.EPOLLRDHUP

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no checksum")

    monkeypatch.setattr(s3_transfer, "select", Select)
    async with RawServer(_answer(LARGE), _answer(LARGE)) as server:
        pool = _pool(server, files)
        with pytest.raises(ConnectionResetError, match=r"No space left|no checksum"):
            await _read(pool, on_good_disk, len(LARGE), written=broken if fault == "checksum" else None)
        (first,) = _movers_of(files)
        assert await _read(pool, on_good_disk, len(LARGE)) == LARGE
        assert _movers_of(files) == [first]
        await pool.aclose()


async def test_a_failed_thread_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no more threads a mover is refused, with every descriptor closed again."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = descriptors()
    with pytest.raises(OSError, match="can't start new thread"):
        TransferThread()
    monkeypatch.undo()
    assert descriptors() == before


async def test_a_pipe_is_emptied_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed write leaves in the pipe is thrown away even where no descriptor is left."""
    buffers = s3_transfer.TransferBuffers()
    near, far = socket.socketpair()
    with near, far:
        far.send(b"left behind")
        os.splice(near.fileno(), buffers.into, 100)
    monkeypatch.setattr(os, "pipe2", lambda _: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many")))
    buffers.drain()
    with pytest.raises(BlockingIOError):
        os.read(buffers.out, 1)
    buffers.close()


def test_files_in_memory_are_told_from_others(in_memory: SinkFile) -> None:
    """A memfd's pages are memory; those of a program on disk are not."""
    assert is_in_memory(in_memory.fd)
    with Path(sys.executable).open("rb") as program:
        assert not is_in_memory(program.fileno())
