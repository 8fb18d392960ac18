"""A thread that moves bodies from sockets into files without their passing through this process.

``splice`` hands the socket's pages to a pipe and has them copied from there into the file's pages. Compared with
receiving into a mapping it saves a fault and the clearing of every fresh page; measured on tmpfs (Linux 6.18), file
allocation included: 0.51 to 0.60 against 0.84 CPU-seconds per GB, and 0.27 against 0.54 where the file's pages were
there already. And it leaves the event loop alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.mapping import FilePlace
    from feedd.values import ReadProgress

_PIPE_BYTES = 1 << 20  # the most an unprivileged process gets; smaller ones cost more: measured, 256 KiB a third more
_LOW_WATER_BYTES = 256 << 10  # woken for that much: fewer turns, and progress is still seen several times per part
_BUFFER_BYTES = 256 << 10  # stays in the processor's cache
_MOVERS_MAX = 2
_MOVE = 1  # SPLICE_F_MOVE
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP


class Move:
    """One body on its way from a socket into a file.

    Attributes:
        stopped: whoever wanted it does not any more.
        file_error: the file could not be written.
        socket_error: the socket broke; ``ConnectionResetError`` too where it ended early.
        sock_fd: descriptor of the socket, our own.
        file: descriptor of the file that was given; ours is another.
    """

    def __init__(
        self,
        sock_fd: int,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[Move], object],
    ) -> None:
        self.file, self._at, self._landed = place
        self._sock = socket.socket(fileno=os.dup(sock_fd))
        try:
            self._file_fd = os.dup(self.file)
        except OSError:
            self._sock.close()
            raise
        self.sock_fd = self._sock.fileno()
        self._left_bytes = size_bytes
        self._progress = progress
        self._ended = ended
        self._busy = threading.Lock()
        self._low_water_bytes = 1
        self.stopped = False
        self.file_error: OSError | None = None
        self.socket_error: OSError | None = None

    def __repr__(self) -> str:
        return f"Move({self._left_bytes} bytes left)"

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.stopped or not self._left_bytes or bool(self.file_error or self.socket_error)

    def stop(self) -> None:
        """Write nothing from here on; waits for a write under way, of at most a pipe's content."""
        with self._busy:
            self.stopped = True

    def prepare(self) -> None:
        """Have the socket count as readable only when it is worth it."""
        self._set_low_water(min(_LOW_WATER_BYTES, self._left_bytes))

    def step(self, pipe: Pipe) -> None:
        """Move what there is, at most a pipe's content."""
        with self._busy:
            if self.over:
                return
            count = self._from_socket(pipe)
            if count and self._progress.first_byte_s is None:
                self._progress.first_byte_s = time.monotonic()
            while count:
                try:
                    written = os.splice(pipe.out, self._file_fd, count, offset_dst=self._at, flags=_MOVE)
                except OSError as error:
                    self.file_error = error
                    pipe.renew()  # what is still in it belongs to nobody
                    return
                count -= written
                try:
                    self._tell(pipe.buffer, written)
                except OSError as error:
                    self.file_error = error
                    pipe.renew()
                    return
                self._at += written
                self._left_bytes -= written
                self._progress.filled_bytes += written
            if self._left_bytes < self._low_water_bytes:
                self._set_low_water(max(1, self._left_bytes))

    def finish(self) -> None:
        """Let go of both descriptors and tell."""
        with contextlib.suppress(OSError):
            self._set_low_water(1)  # the next head is short
        self._sock.close()
        os.close(self._file_fd)
        self._ended(self)

    def _tell(self, buffer: memoryview, size_bytes: int) -> None:
        """Read back what was written, which is in the processor's cache still, for whoever wants to know."""
        if self._landed is None:
            return
        done = 0
        while done < size_bytes:
            count = os.preadv(self._file_fd, [buffer[: size_bytes - done]], self._at + done)
            if not count:
                raise OSError(errno.EIO, "file ends before what was written")
            self._landed(self._at + done, buffer[:count])
            done += count

    def _from_socket(self, pipe: Pipe) -> int:
        wanted = min(_PIPE_BYTES, self._left_bytes)
        try:
            count = os.splice(self.sock_fd, pipe.into, wanted, flags=_MOVE | _NONBLOCK)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.socket_error = error
            return 0
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
        return count

    def _set_low_water(self, size_bytes: int) -> None:
        if size_bytes != self._low_water_bytes:
            self._low_water_bytes = size_bytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class Pipe:
    """What bodies pass through; empty between steps.

    Attributes:
        buffer: for looking at what passed.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._open()

    def _open(self) -> None:
        self.out, self.into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's pipes may be at their limit: smaller works too
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """Close."""
        os.close(self.out)
        os.close(self.into)

    def renew(self) -> None:
        """Throw the content away."""
        self.close()
        self._open()


class Movers:
    """As many movers as are worth it; bodies go to the one that has the least to do.

    Those of one file go to the same one: a file lets one writer in at a time, and the others would spin. Measured, two
    movers cost a tenth of a CPU-second per GB more where they write to the same file.
    """

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self._all = [Mover() for _ in range(min(cores, _MOVERS_MAX))]

    def for_file(self, fd: int) -> Mover:
        """Return the one to move a body to that descriptor's file."""
        return min(self._all, key=lambda mover: mover.burden(fd))

    def close(self) -> None:
        """Close all; see ``Mover.close``."""
        for mover in self._all:
            mover.close()


class Mover:
    """Moves any number of bodies at a time, a step of each in turn, in one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_out, self._wake_into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_out, select.EPOLLIN)
        self._new: list[Move] = []
        self._lock = threading.Lock()
        self._closing = False
        self._files: Counter[int] = Counter()  # bodies under way, by descriptor of their file
        self._thread = threading.Thread(target=self._run, name="feedd-mover", daemon=True)
        self._thread.start()

    def add(self, move: Move) -> None:
        """Begin; ``move`` tells from this thread when it is over."""
        with self._lock:
            self._new.append(move)
            self._files[move.file] += 1
        self.look()

    def burden(self, file: int) -> tuple[bool, int]:
        """Return what to compare movers by: whether they are strange to that file, then how much they have to do."""
        with self._lock:
            return not self._files[file], self._files.total()

    def look(self) -> None:
        """Notice what is new, and moves that were stopped."""
        with contextlib.suppress(BlockingIOError):  # it has not come to look for thousands of times: it will
            os.write(self._wake_into, b"?")

    def close(self) -> None:
        """End all moves as stopped, and the thread; nothing may be added or stopped afterwards."""
        if not self._closing:
            self._closing = True
            self.look()
            self._thread.join()
            for fd in (self._wake_out, self._wake_into):
                os.close(fd)
            self._epoll.close()

    def _run(self) -> None:
        moves: dict[int, Move] = {}
        pipe = Pipe()
        try:
            while not self._closing:
                for fd, _ in self._epoll.poll():
                    move = moves.get(fd)
                    if move is not None:
                        move.step(pipe)
                        if move.over:
                            self._end(moves, move)
                    elif fd == self._wake_out:
                        self._woken(moves)
        finally:
            pipe.close()
            self._woken(moves)
            for move in list(moves.values()):
                move.stop()
                self._end(moves, move)

    def _woken(self, moves: dict[int, Move]) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_out, 4096):
                pass
        with self._lock:
            new, self._new = self._new, []
        for move in new:
            moves[move.sock_fd] = move
            move.prepare()
            self._epoll.register(move.sock_fd, _EVENTS)
        for move in [move for move in moves.values() if move.over]:
            self._end(moves, move)

    def _end(self, moves: dict[int, Move], move: Move) -> None:
        del moves[move.sock_fd]
        self._epoll.unregister(move.sock_fd)
        with self._lock:
            self._files[move.file] -= 1
            self._files += Counter()  # forget the zeros
        move.finish()
