"""Transfers of bodies from sockets into files, and the threads that do them, so that the event loop stays free.

Plain bodies use ``splice``, which hands the socket's pages to a pipe and copies them into the file's pages. Compared
with receiving into a mapping, it saves a page fault and the clearing of every fresh page.

Measured on tmpfs (Linux 6.18), file allocation included: 0.51 to 0.60 against 0.84 CPU-seconds per GB, and 0.27 against
0.54 if the file's pages existed. TLS bodies are decrypted into a buffer that stays in the CPU cache.

The same threads write small bodies, many at a time, from memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from feedd.flow.sink_file import write_at

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from feedd.flow.range_sinks import FileSink
    from feedd.values import ReadProgress

_PIPE_BYTES = 1 << 20  # the most an unprivileged process gets; measured, 256 KiB cost a third more
LOW_WATER_BYTES = 256 << 10  # low-water mark: fewer wake-ups, and progress is still seen several times per part
_BUFFER_BYTES = 256 << 10  # fits into the CPU cache
_RECORD_BYTES = 17 << 10  # a TLS record with its overhead; OpenSSL may hold a half-read one
_MOVE = 1  # SPLICE_F_MOVE
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_RUN_COUNT_MAX: Final = 64  # adjacent bodies written by one call; with 100 KB each, as much as a part of a large object
_CLOSE_S: Final = 5.0  # a thread that a disk delays for longer is abandoned; it closes its resources itself
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP
_log = structlog.get_logger(__name__)


class Cipher(NamedTuple):
    """The TLS state of one connection; used by one thread at a time.

    Attributes:
        tls: decrypts.
        incoming: holds received bytes for ``tls``.
    """

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO


class BodyTransfer(ABC):
    """The transfer of one body from a socket into a file, step by step in one thread.

    No lock is held during a read or write. A disk may delay a step without limit, and a caller that stops the transfer
    does not wait. The file's ``writers`` tell when this transfer has released the file.

    Attributes:
        stopped: the body is no longer wanted.
        writing: a step waits for the file.
        file_error: the file could not be written.
        socket_error: the socket failed; ``ConnectionResetError`` if it ended early.
        sock_fd: a duplicated descriptor of the socket.
        file: descriptor of the file; open until the file's writers have ended.
        first: bytes received already, which are written first.
    """

    def __init__(
        self,
        sock_fd: int,
        sink: FileSink,
        progress: ReadProgress,
        ended: Callable[[BodyTransfer], object],
    ) -> None:
        self._sink = sink
        self.file, self._at = sink.file.fd, sink.offset
        self._sock = socket.socket(fileno=os.dup(sock_fd))
        self.sock_fd = self._sock.fileno()
        self._left_bytes = sink.size_bytes
        self._progress = progress
        self._ended = ended
        self._counting = threading.Lock()  # held for a few additions, never during a system call that may wait
        self._low_water_bytes = 1
        self.stopped = self.writing = False
        self.first = b""
        self.file_error: OSError | None = None
        self.socket_error: OSError | None = None
        self._sink.file.writers.begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._left_bytes} bytes left)"

    @property
    def over(self) -> bool:
        """Whether the transfer has ended."""
        return self.stopped or not self._left_bytes or bool(self.file_error or self.socket_error)

    def stop(self) -> None:
        """Count no further byte and begin no further write. Does not wait for a running write."""
        with self._counting:
            if not self.over:
                with contextlib.suppress(OSError):  # the sender learns of the end without waiting for the disk
                    self._sock.shutdown(socket.SHUT_RDWR)
            self.stopped = True

    def prepare(self, buffers: TransferBuffers) -> None:
        """Write the bytes received already, and set the socket's low-water mark."""
        if self.first and not self.over:
            self._first_byte()
            self._write(memoryview(self.first))
        if not self.over:
            self._begin(buffers)
            self._set_low_water()

    def step(self, buffers: TransferBuffers) -> None:
        """Move the available bytes, at most one pipe full."""
        if not self.over:
            self._advance(buffers)
            self._set_low_water()

    def fail(self, error: Exception) -> None:
        """End the transfer with an unexpected error."""
        if isinstance(error, OSError):
            self.socket_error = error
        else:
            self.socket_error = ConnectionResetError(f"a transfer ended with {type(error).__name__}: {error}")

    def finish(self) -> None:
        """Release the socket and the file, and report the end."""
        with contextlib.suppress(OSError):
            self._ask_for(1)  # the next head is short
        with self._counting:
            self._sock.close()
        self._sink.file.writers.end()
        self._ended(self)

    @abstractmethod
    def _begin(self, buffers: TransferBuffers) -> None:
        """Move the bytes that are already buffered."""

    @abstractmethod
    def _advance(self, buffers: TransferBuffers) -> None:
        """Move the bytes that the socket has."""

    @abstractmethod
    def _owed_bytes(self) -> int:
        """Return how many bytes the socket will bring at least."""

    def _arrived(self, data: memoryview | None, size_bytes: int) -> bool:
        """Count bytes written to the file and report them; False: the body is no longer wanted.

        Args:
            data: the bytes; None: nothing needs them.
            size_bytes: number of bytes.
        """
        done = self._progress.filled_bytes
        if data is not None and not self.stopped:
            self._sink.note_written(done, data, begins=not done)
        with self._counting:
            if self.stopped:
                return False
            self._at += size_bytes
            self._left_bytes -= size_bytes
            self._progress.filled_bytes += size_bytes
        return True

    def _write(self, data: memoryview) -> None:
        self.writing = True
        try:
            write_at(self.file, data, self._at)
        except OSError as error:
            self.file_error = error
            return
        finally:
            self.writing = False
        self._arrived(data, data.nbytes)

    def _first_byte(self) -> None:
        if self._progress.first_byte_s is None and not self.stopped:
            self._progress.first_byte_s = time.monotonic()

    def _set_low_water(self) -> None:
        if not self.over:
            self._ask_for(max(1, min(LOW_WATER_BYTES, self._owed_bytes())))

    def _ask_for(self, size_bytes: int) -> None:
        if size_bytes != self._low_water_bytes:
            self._low_water_bytes = size_bytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class SplicedTransfer(BodyTransfer):
    """The transfer of a body without TLS."""

    def _begin(self, buffers: TransferBuffers) -> None:
        """Do nothing: no bytes are buffered."""

    def _owed_bytes(self) -> int:
        return self._left_bytes

    def _advance(self, buffers: TransferBuffers) -> None:
        count = self._from_socket(buffers)
        if count:
            self._first_byte()
        while count:
            try:
                self.writing = True
                written = os.splice(buffers.out, self.file, count, offset_dst=self._at, flags=_MOVE)
                told = self._written(buffers.buffer, written)
            except OSError as error:
                self.file_error = error
                told = False
            finally:
                self.writing = False
            if not told:
                buffers.drain()  # the rest in the pipe is not wanted
                return
            count -= written

    def _written(self, buffer: memoryview, size_bytes: int) -> bool:
        """Count written bytes; if checksums are taken, read the bytes back while they are in the CPU cache."""
        if not self._sink.wants_written:
            return self._arrived(None, size_bytes)
        while size_bytes:
            count = os.preadv(self.file, [buffer[:size_bytes]], self._at)
            if not count:
                raise OSError(errno.EIO, "the file ends before the written bytes")
            if not self._arrived(buffer[:count], count):
                return False
            size_bytes -= count
        return True

    def _from_socket(self, buffers: TransferBuffers) -> int:
        wanted = min(_PIPE_BYTES, self._left_bytes)
        try:
            count = os.splice(self.sock_fd, buffers.into, wanted, flags=_MOVE | _NONBLOCK)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.socket_error = error
            return 0
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
        return count


class DecryptedTransfer(BodyTransfer):
    """The transfer of a body under TLS. No other thread uses ``cipher`` until it is over."""

    def __init__(
        self,
        cipher: Cipher,
        sock_fd: int,
        sink: FileSink,
        progress: ReadProgress,
        ended: Callable[[BodyTransfer], object],
    ) -> None:
        super().__init__(sock_fd, sink, progress, ended)
        self._tls, self._incoming = cipher

    def _begin(self, buffers: TransferBuffers) -> None:
        self._decrypt(buffers)

    def _owed_bytes(self) -> int:
        return self._left_bytes - self._incoming.pending - _RECORD_BYTES

    def _advance(self, buffers: TransferBuffers) -> None:
        try:
            count = self._sock.recv_into(buffers.received)
        except BlockingIOError:
            return
        except OSError as error:
            self.socket_error = error
            return
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
            return
        self._incoming.write(buffers.received[:count])
        self._decrypt(buffers)

    def _decrypt(self, buffers: TransferBuffers) -> None:
        """Write all bytes that can be decrypted."""
        ready = True
        while ready and not self.over:
            filled, limit = 0, min(buffers.buffer.nbytes, self._left_bytes)
            try:
                while filled < limit:
                    count = self._tls.read(limit - filled, buffers.buffer[filled:limit])
                    if not count:
                        self.socket_error = ConnectionResetError("closed by the other side")
                        ready = False
                        break
                    filled += int(count)
            except ssl.SSLWantReadError:
                ready = False
            except ssl.SSLError as error:
                self.socket_error = error
                ready = False
            if filled:
                self._first_byte()
                self._write(buffers.buffer[:filled])


class TransferBuffers:
    """Buffers that bodies pass through; empty between steps.

    Attributes:
        buffer: for bytes to or from the file.
        received: for bytes from the socket that are not decrypted yet.
        out: the pipe's end to read from.
        into: the pipe's end to write to.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.received = memoryview(bytearray(_BUFFER_BYTES))
        self.out, self.into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's pipes may be at their limit; a smaller pipe works too
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """Close both ends of the pipe."""
        os.close(self.out)
        os.close(self.into)

    def drain(self) -> None:
        """Discard the content of the pipe; unlike a new pipe, this needs no descriptor."""
        with contextlib.suppress(BlockingIOError):
            while os.readv(self.out, [self.buffer]):
                pass


@dataclass(eq=False, slots=True)
class Write:
    """Bytes for one region of a file.

    Attributes:
        sink: the region; its ``writers`` learn when the write has ended.
        data: the bytes; reserved until ``ended`` is called.
        loop: event loop on which ``ended`` is called.
        ended: called after success or failure.
        stopped: the bytes are no longer wanted; set on the loop.
        error: why they could not be written.
        fd: descriptor of the file, which stays open until the writers are told.
    """

    sink: FileSink
    data: memoryview
    loop: asyncio.AbstractEventLoop
    ended: Callable[[Write], object]
    stopped: bool = False
    error: Exception | None = None
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        self.fd = self.sink.file.fd


def write_all(writes: Sequence[Write]) -> None:
    """Write all bodies, adjacent ones in one call, and report the results; raises nothing."""
    for run in _runs(writes):
        try:
            _write(run)
        except Exception as error:  # noqa: BLE001 - it ends these bodies, not the thread that all others need
            for write in run:
                write.error = error
    end_all(writes)


def end_all(writes: Iterable[Write]) -> None:
    """Report the end of the writes, with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        write.sink.file.writers.end()
        by_loop.setdefault(write.loop, []).append(write)
    for loop, ended in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
            loop.call_soon_threadsafe(_report_end, ended)


def _runs(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """Yield the wanted writes in runs that are adjacent in one file."""
    run: list[Write] = []
    end = -1
    for write in sorted((one for one in writes if not one.stopped), key=_position):
        if run and (write.sink.file is not run[0].sink.file or write.sink.offset != end or len(run) == _RUN_COUNT_MAX):
            yield run
            run = []
        run.append(write)
        end = write.sink.offset + write.data.nbytes
    if run:
        yield run


def _position(write: Write) -> tuple[int, int]:
    return id(write.sink.file), write.sink.offset


def _write(run: Sequence[Write]) -> None:
    left = [write.data for write in run]
    fd, at = run[0].fd, run[0].sink.offset
    while left:
        count = os.pwritev(fd, left, at)
        at += count
        while left and count >= left[0].nbytes:
            count -= left.pop(0).nbytes
        if left:
            left[0] = left[0][count:]
    for write in run:
        if not write.stopped:
            write.sink.note_written(0, write.data, begins=True)


def _report_end(writes: Iterable[Write]) -> None:
    for write in writes:
        write.ended(write)


class TransferThreads:
    """A bounded number of transfer threads; a body goes to the least busy one.

    Bodies for one file go to the same thread, because a file admits one writer at a time and the others would spin.
    Measured, two threads cost a tenth of a CPU-second per GB more if they write to the same file. Files in memory have
    separate threads, so that a hanging disk does not block them. The threads start with their first body.

    Args:
        count: threads for files on disk, and as many for files in memory.
    """

    def __init__(self, count: int) -> None:
        assert count > 0, "at least one thread is needed"
        self._count = count
        self._all: dict[bool, list[TransferThread]] = {}  # by whether their files are in memory
        self._ended_busy_s = 0.0  # of threads that were replaced

    @property
    def busy_s(self) -> float:
        """Seconds that all threads have spent on bodies."""
        return self._ended_busy_s + sum(thread.busy_s for group in tuple(self._all.values()) for thread in group)

    def for_file(self, sink: FileSink) -> TransferThread:
        """Return the thread to move a body to ``sink``; threads that ended are replaced.

        Raises:
            OSError: no descriptor or thread is left for a new thread, and there is no other.
        """
        known = self._all.get(sink.file.in_memory, ())
        threads = [thread for thread in known if thread.alive]
        if len(threads) < len(known):
            self._ended_busy_s += sum(thread.busy_s for thread in known if not thread.alive)
        try:
            while len(threads) < self._count:
                threads.append(TransferThread())
        except OSError:
            if not threads:
                raise
        self._all[sink.file.in_memory] = threads
        return min(threads, key=lambda thread: thread.burden(sink.file.fd))

    def started(self, sink: FileSink) -> bool:
        """Whether a transfer thread for files of that kind is running."""
        return any(thread.alive for thread in self._all.get(sink.file.in_memory, ()))

    def close(self) -> None:
        """Close all threads; see ``TransferThread.close``."""
        transfer_threads = [transfer_thread for group in self._all.values() for transfer_thread in group]
        for transfer_thread in transfer_threads:
            transfer_thread.end()
        for transfer_thread in transfer_threads:
            transfer_thread.close()


class TransferThread:
    """Moves any number of bodies at a time, a step of each in turn, in one thread.

    An error in one body ends only that body. If the thread ends all the same, it ends its bodies and takes no more.

    Attributes:
        busy_s: seconds that the thread did not wait for sockets or new bodies.

    Raises:
        OSError: no descriptor or thread is left.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._moves: dict[int, BodyTransfer] = {}  # by descriptor of the socket; used by the thread only
        self._new: list[BodyTransfer] = []
        self._writes: list[Write] = []
        self._lock = threading.Lock()
        self._closing = self._ended = False
        self._files: Counter[int] = Counter()  # running bodies, by descriptor of their file
        with contextlib.ExitStack() as stack:
            self._buffers = TransferBuffers()
            stack.callback(self._buffers.close)
            self._epoll = select.epoll()
            stack.callback(self._epoll.close)
            self._wake_out, self._wake_into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, self._wake_out)
            stack.callback(os.close, self._wake_into)
            self._epoll.register(self._wake_out, select.EPOLLIN)
            # The thread releases these at its end, because only it knows when it no longer needs them.
            self._release = stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="feedd-mover", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._release.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether the thread takes bodies."""
        return not self._ended

    def add(self, move: BodyTransfer) -> None:
        """Begin a transfer; ``move`` reports its end from this thread.

        Raises:
            OSError: the thread has ended; the move has been told so.
        """
        if not self._take(move.file, lambda: self._new.append(move)):
            move.fail(ConnectionResetError("its transfer thread has ended"))
            move.finish()
            raise OSError(errno.ESRCH, "its transfer thread has ended")

    def write(self, write: Write) -> None:
        """Write a body from memory; ``write`` reports the end.

        Raises:
            OSError: the thread has ended; nothing is reported.
        """
        write.sink.file.writers.begin()
        if not self._take(write.fd, lambda: self._writes.append(write)):
            write.sink.file.writers.end()
            raise OSError(errno.ESRCH, "its transfer thread has ended")

    def _take(self, file: int, note: Callable[[], object]) -> bool:
        with self._lock:
            if self._ended:
                return False
            awake = bool(self._new or self._writes)  # the thread was woken and has not looked yet
            note()
            self._files[file] += 1
            if not awake:
                self._wake()
        return True

    def burden(self, file: int) -> tuple[bool, int]:
        """Return the sort key of this thread for a file: whether the file is new to it, then its number of bodies."""
        with self._lock:
            return not self._files[file], self._files.total()

    def look(self) -> None:
        """Wake the thread, so that it notices stopped transfers."""
        with self._lock:
            if not self._ended:
                self._wake()

    def end(self) -> None:
        """End all transfers as stopped, and the thread; nothing may be added afterwards."""
        self._closing = True
        self.look()

    def close(self) -> None:
        """End the thread and wait for it; a thread that a disk delays ends when the disk answers."""
        self.end()
        self._thread.join(_CLOSE_S)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups, so the thread will look
            os.write(self._wake_into, b"?")

    def _run(self) -> None:
        try:
            while not self._closing:
                events = self._epoll.poll()
                began_s = time.monotonic()
                for fd, _ in events:
                    move = self._moves.get(fd)
                    if move is not None:
                        self._advance(move, move.step)
                    elif fd == self._wake_out:
                        self._woken()
                self.busy_s += time.monotonic() - began_s
        except Exception:  # noqa: BLE001 - logged, and every body it had is told
            _log.exception("a transfer thread ends; another takes its place")
        finally:
            self._end_all()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_out, 4096):
                pass
        with self._lock:
            new, self._new = self._new, []
            writes, self._writes = self._writes, []
        if writes:
            write_all(writes)
            self._forget(write.fd for write in writes)
        for move in new:
            self._moves[move.sock_fd] = move
        for move in new:
            try:
                self._epoll.register(move.sock_fd, _EVENTS)
            except OSError as error:  # ENOSPC: the user's epoll watches are used up
                move.fail(error)
            self._advance(move, move.prepare)
        for move in [move for move in self._moves.values() if move.over]:
            self._end(move)

    def _advance(self, move: BodyTransfer, step: Callable[[TransferBuffers], None]) -> None:
        try:
            step(self._buffers)
        except Exception as error:  # noqa: BLE001 - it ends this body, not the thread that all others need
            _log.exception("a transfer failed")
            move.fail(error)
            self._buffers.drain()
        if move.over:
            self._end(move)

    def _end(self, move: BodyTransfer) -> None:
        if self._moves.pop(move.sock_fd, None) is None:
            return
        with contextlib.suppress(OSError):  # it was not registered
            self._epoll.unregister(move.sock_fd)
        self._forget((move.file,))
        move.finish()

    def _forget(self, files: Iterable[int]) -> None:
        with self._lock:
            self._files.subtract(files)
            self._files += Counter()  # drops the zeros

    def _end_all(self) -> None:
        with self._lock:
            self._ended = True
            new, writes = self._new, self._writes
            self._release.close()
        for move in (*self._moves.values(), *new):
            if self._closing:
                move.stop()
            else:
                move.fail(ConnectionResetError("its transfer thread has ended"))
            move.finish()
        for write in writes:
            write.error = OSError(errno.ESRCH, "its transfer thread has ended")
        end_all(writes)
