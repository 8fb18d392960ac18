"""Threads that move bodies from sockets into files, so that the event loop stays free."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from feedd.fetch.s3.body_transfer import TransferBuffers
from feedd.fetch.s3.small_writes import end_all, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from feedd.fetch.s3.body_transfer import BodyTransfer
    from feedd.fetch.s3.small_writes import Write
    from feedd.flow.range_sinks import FileSink

_CLOSE_S: Final = 5.0  # a thread that a disk delays for longer is abandoned; it closes its resources itself
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP
_log = structlog.get_logger(__name__)


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
