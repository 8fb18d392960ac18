"""Bodies moved from sockets into files by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.fetch.s3.bodies import Files, HandedBody, WrittenBody
from feedd.fetch.s3.transfer import BodyTransfer, SplicedTransfer, TransferThread, TransferThreads
from feedd.flow.range_sinks import FileSink
from feedd.flow.sink_file import SinkFile
from feedd.values import ReadProgress
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.sinks import content, sink_file

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3 << 20
DATA = os.urandom(SIZE)


def sink(file: SinkFile, at: int, size: int) -> FileSink:
    """Return a place of a file on a disk."""
    file.in_memory = False  # the folder of tests may be in memory
    return FileSink(file, at, size)


class Rig:
    """A socket pair, a file, and a mover."""

    def __init__(self, folder: Path) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.file = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self.file, 0, SIZE + 8192)
        self.sink_file = SinkFile(self.file)
        self.transfer_thread = TransferThread()
        self.progress = ReadProgress()
        self.over = threading.Event()

    def move(self, size: int = SIZE, at: int = 4096) -> BodyTransfer:
        move = SplicedTransfer(
            self.near.fileno(),
            sink(self.sink_file, at, size),
            self.progress,
            lambda _: self.over.set(),
        )
        self.transfer_thread.add(move)
        return move

    def send(self, data: bytes) -> None:
        sender = threading.Thread(target=self.far.sendall, args=(data,))
        sender.start()
        sender.join(PATIENT_S)
        assert not sender.is_alive()

    def ended(self) -> bool:
        return self.over.wait(PATIENT_S)

    def close(self) -> None:
        self.transfer_thread.close()
        for sock in (self.near, self.far):
            sock.close()
        self.sink_file.close()
        os.close(self.file)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return one, closed again."""
    made = Rig(tmp_path)
    yield made
    made.close()


def test_moves_exactly_the_body(rig: Rig) -> None:
    """Exactly so many bytes go to the place asked for; what follows stays in the socket."""
    move = rig.move()
    rig.send(DATA + b"next")
    assert rig.ended()
    assert move.file_error is move.socket_error is None
    assert rig.progress.filled_bytes == SIZE
    assert rig.progress.first_byte_s is not None
    assert os.pread(rig.file, SIZE, 4096) == DATA
    assert os.pread(rig.file, 4096, 0) == bytes(4096)
    assert rig.near.recv(100) == b"next"


def test_time_on_bodies_is_counted(tmp_path: Path) -> None:
    """A thread that moves a body is busy, one that waits for bytes is not; a thread that ended stays counted."""
    near, far = socket.socketpair()
    with near, far, (tmp_path / "file").open("w+b") as opened, contextlib.closing(TransferThreads(1)) as threads:
        near.setblocking(False)
        os.posix_fallocate(opened.fileno(), 0, SIZE)
        sink_ = sink(SinkFile(opened.fileno()), 0, SIZE)
        over, began_s = threading.Event(), time.monotonic()
        first = threads.for_file(sink_)
        assert threads.busy_s == 0.0
        first.add(SplicedTransfer(near.fileno(), sink_, ReadProgress(), lambda _: over.set()))
        time.sleep(0.2)
        far.sendall(DATA)
        assert over.wait(PATIENT_S)
        first.close()
        assert 0 < threads.busy_s < time.monotonic() - began_s - 0.1
        busy_s = threads.busy_s
        assert threads.for_file(sink_) is not first
        assert threads.busy_s >= busy_s


def test_end_before_the_body_does(rig: Rig) -> None:
    """A socket that ends early is an error, with what came so far counted and in place."""
    move = rig.move()
    rig.send(DATA[:300_000])
    rig.far.close()
    assert rig.ended()
    assert isinstance(move.socket_error, ConnectionResetError)
    assert rig.progress.filled_bytes == 300_000
    assert os.pread(rig.file, 300_000, 4096) == DATA[:300_000]


def test_stopped_writes_no_more(rig: Rig) -> None:
    """No write begins after ``stop``, whatever arrives."""
    move = rig.move()
    move.stop()
    filled = rig.progress.filled_bytes
    with contextlib.suppress(BrokenPipeError):  # the sender hears of it at once
        rig.far.sendall(DATA[:100_000])
    rig.transfer_thread.look()
    assert rig.ended()
    assert rig.progress.filled_bytes == filled == 0
    assert os.pread(rig.file, SIZE, 4096) == bytes(SIZE)


def test_file_that_cannot_be_written(rig: Rig, tmp_path: Path) -> None:
    """An error of the file is told apart from one of the socket, and the next body is not disturbed by it."""
    readonly = os.open(tmp_path / "file", os.O_RDONLY)
    failed = threading.Event()
    bad = SplicedTransfer(
        rig.near.fileno(),
        sink(SinkFile(readonly), 0, SIZE),
        ReadProgress(),
        lambda _: failed.set(),
    )
    rig.transfer_thread.add(bad)
    rig.send(DATA[:300_000])
    assert failed.wait(PATIENT_S)
    os.close(readonly)
    assert bad.file_error is not None
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        rig.transfer_thread.add(
            SplicedTransfer(
                near.fileno(),
                sink(rig.sink_file, 0, 1000),
                rig.progress,
                lambda _: rig.over.set(),
            )
        )
        far.sendall(DATA[:1000])
        assert rig.ended()
    assert os.pread(rig.file, 1000, 0) == DATA[:1000]


def test_closing_ends_all(rig: Rig) -> None:
    """``close`` ends what is under way as stopped, tells, and gives every descriptor back."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    moves = [rig.move() for _ in range(3)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 3
    rig.transfer_thread.close()
    assert rig.over.is_set()
    assert all(move.stopped for move in moves)
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 5  # the mover's own, too


async def test_many_at_a_time(tmp_path: Path) -> None:
    """Bodies of several sockets, sent in small pieces side by side, all arrive whole."""
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    shared = SinkFile(file)
    pairs = [socket.socketpair() for _ in range(8)]
    transfer_thread, done = TransferThread(), threading.Semaphore(0)
    for index, (near, far) in enumerate(pairs):
        near.setblocking(False)
        far.setblocking(False)
        transfer_thread.add(
            SplicedTransfer(
                near.fileno(),
                sink(shared, index * SIZE, SIZE),
                ReadProgress(),
                lambda _: done.release(),
            )
        )
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*[loop.sock_sendall(far, DATA) for _, far in pairs])
        for _ in pairs:
            await asyncio.to_thread(done.acquire)
    assert os.pread(file, SIZE * 8 + 1, 0) == DATA * 8
    transfer_thread.close()
    shared.close()
    os.close(file)
    for pair in pairs:
        for sock in pair:
            sock.close()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_without_descriptors_through_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_memory: bool
) -> None:
    """Where there is no descriptor for a copy of the socket, the body comes through memory, its transport unpaused."""
    file = os.memfd_create("test") if in_memory else os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, SIZE)
    shared = SinkFile(file)
    shared.in_memory = in_memory  # the folder of tests may be in memory, too
    near, far = socket.socketpair()
    transport, protocol = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
    transfer_threads = TransferThreads(2)
    refusal = OSError(errno.EMFILE, "too many open files")
    monkeypatch.setattr(os, "dup", lambda _: (_ for _ in ()).throw(refusal))
    progress = ReadProgress()
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def end(error: Exception | None) -> None:
        ended.set_result(error)

    body = Files(transfer_threads).body(
        transport,
        asyncio.get_running_loop(),
        FileSink(shared, 0, SIZE),
        progress,
        end,
        memoryview(DATA[:1000]),
    )
    monkeypatch.undo()
    assert isinstance(body, WrittenBody if in_memory else HandedBody)
    assert transport.is_reading()
    assert isinstance(protocol, asyncio.Protocol)
    at = 1000
    while at < SIZE:
        into = body.buffer()
        count = min(len(into), SIZE - at)
        into[:count] = DATA[at : at + count]
        body.received(count)
        at += count
        if not in_memory:
            await until(lambda: transport.is_reading() or progress.filled_bytes == SIZE)
    assert in_memory or await ended is None
    assert progress.filled_bytes == SIZE
    assert os.pread(file, SIZE, 0) == DATA
    transfer_threads.close()
    transport.abort()
    far.close()
    shared.close()
    os.close(file)
    await asyncio.sleep(0)


def test_parts_of_a_sink_and_its_closed_file(tmp_path: Path) -> None:
    """A part of a part lies where it should; a closed file is an error, and its last writer closes the descriptor."""
    with sink_file(tmp_path / "file", 20_000) as file:
        inner = FileSink(file, 1000, 19_000).part(4000, 19_000).part(10, 14_000)
        inner.write_now(0, memoryview(b"there"))
        assert (tmp_path / "file").read_bytes()[5005:5020] == b"\0" * 5 + b"there" + b"\0" * 5
        assert content(inner)[:6] == b"there\0"
        fd = file.fd
        file.writers.begin()
        file.close()
        with pytest.raises(OSError, match="the file is closed"):
            inner.write_now(0, memoryview(b"gone"))
        os.fstat(fd)
        file.writers.end()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
