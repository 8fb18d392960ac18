"""Threads that move bodies from sockets into files, so that the event loop is left alone."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from feedd.fetch.s3.body_transfer import TransferBuffers
from feedd.fetch.s3.small_writes import end_all, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from feedd.fetch.s3.body_transfer import BodyTransfer
    from feedd.fetch.s3.small_writes import Write
    from feedd.flow.mapping import FilePlace

_CLOSE_S: Final = 5.0  # a thread that a disk holds up for longer is left behind; it closes what it has by itself
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP
_log = structlog.get_logger(__name__)


class TransferThreads:
    """As many movers as are worth it; bodies go to the one that has the least to do.

    Those of one file go to the same one: a file lets one writer in at a time, and the others would spin. Measured, two
    movers cost a tenth of a CPU-second per GB more where they write to the same file. Files in memory have movers of
    their own: a disk that hangs holds up nobody who goes past it. They start with the first body for them.

    Args:
        count: movers for files on disk, and as many for files in memory.
    """

    def __init__(self, count: int) -> None:
        assert count > 0, "somebody has to move"
        self._count = count
        self._all: dict[bool, list[TransferThread]] = {}  # by whether their files are in memory

    def for_file(self, place: FilePlace) -> TransferThread:
        """Return the one to move a body there; one whose thread has ended is replaced.

        Raises:
            OSError: no descriptor or thread is left for a new one, and there is no other.
        """
        threads = [thread for thread in self._all.get(place.in_memory, ()) if thread.alive]
        try:
            while len(threads) < self._count:
                threads.append(TransferThread())
        except OSError:
            if not threads:
                raise
        self._all[place.in_memory] = threads
        return min(threads, key=lambda thread: thread.burden(place.fd))

    def started(self, place: FilePlace) -> bool:
        """Whether there is a transfer thread for files of that kind already."""
        return any(thread.alive for thread in self._all.get(place.in_memory, ()))

    def close(self) -> None:
        """Close all; see ``TransferThread.close``."""
        transfer_threads = [transfer_thread for group in self._all.values() for transfer_thread in group]
        for transfer_thread in transfer_threads:
            transfer_thread.end()
        for transfer_thread in transfer_threads:
            transfer_thread.close()


class TransferThread:
    """Moves any number of bodies at a time, a step of each in turn, in one thread.

    What goes wrong with one body ends that body. A thread that ends all the same ends its bodies, and takes no more.

    Raises:
        OSError: no descriptor or thread is left.
    """

    def __init__(self) -> None:
        self._moves: dict[int, BodyTransfer] = {}  # by their sockets' descriptors; the thread's
        self._new: list[BodyTransfer] = []
        self._writes: list[Write] = []
        self._lock = threading.Lock()
        self._closing = self._ended = False
        self._files: Counter[int] = Counter()  # bodies under way, by descriptor of their file
        with contextlib.ExitStack() as stack:
            self._buffers = TransferBuffers()
            stack.callback(self._buffers.close)
            self._epoll = select.epoll()
            stack.callback(self._epoll.close)
            self._wake_out, self._wake_into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, self._wake_out)
            stack.callback(os.close, self._wake_into)
            self._epoll.register(self._wake_out, select.EPOLLIN)
            self._release = stack.pop_all()  # by the thread, when it ends: nobody else knows when it needs them no more
        self._thread = threading.Thread(target=self._run, name="feedd-mover", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._release.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether its thread takes bodies."""
        return not self._ended

    def add(self, move: BodyTransfer) -> None:
        """Begin; ``move`` tells from this thread when it is over.

        Raises:
            OSError: the thread has ended; the move has been told so.
        """
        if not self._take(move.file, lambda: self._new.append(move)):
            move.fail(ConnectionResetError("its transfer thread has ended"))
            move.finish()
            raise OSError(errno.ESRCH, "its transfer thread has ended")

    def write(self, write: Write) -> None:
        """Write a body from memory; ``write`` tells when that is over.

        Raises:
            OSError: the thread has ended; nothing is told.
        """
        write.place.writers.begin()
        if not self._take(write.place.fd, lambda: self._writes.append(write)):
            write.place.writers.end()
            raise OSError(errno.ESRCH, "its transfer thread has ended")

    def _take(self, file: int, note: Callable[[], object]) -> bool:
        with self._lock:
            if self._ended:
                return False
            awake = bool(self._new or self._writes)  # it was told, and has not come to look yet
            note()
            self._files[file] += 1
            if not awake:
                self._wake()
        return True

    def burden(self, file: int) -> tuple[bool, int]:
        """Return what to compare movers by: whether they are strange to that file, then how much they have to do."""
        with self._lock:
            return not self._files[file], self._files.total()

    def look(self) -> None:
        """Notice moves that were stopped."""
        with self._lock:
            if not self._ended:
                self._wake()

    def end(self) -> None:
        """Have all moves end as stopped, and the thread; nothing may be added afterwards."""
        self._closing = True
        self.look()

    def close(self) -> None:
        """End it, and wait for the thread; one that a disk holds up ends when the disk answers."""
        self.end()
        self._thread.join(_CLOSE_S)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has not come to look for thousands of times: it will
            os.write(self._wake_into, b"?")

    def _run(self) -> None:
        try:
            while not self._closing:
                for fd, _ in self._epoll.poll():
                    move = self._moves.get(fd)
                    if move is not None:
                        self._advance(move, move.step)
                    elif fd == self._wake_out:
                        self._woken()
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
            self._forget(write.place.fd for write in writes)
        for move in new:
            self._moves[move.sock_fd] = move
        for move in new:
            try:
                self._epoll.register(move.sock_fd, _EVENTS)
            except OSError as error:  # ENOSPC: the user's watches are used up
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
        with contextlib.suppress(OSError):  # it could not be registered
            self._epoll.unregister(move.sock_fd)
        self._forget((move.file,))
        move.finish()

    def _forget(self, files: Iterable[int]) -> None:
        with self._lock:
            self._files.subtract(files)
            self._files += Counter()  # forget the zeros

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
