"""Threads that move bodies from sockets into files, so that the event loop is left alone."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import Counter
from typing import TYPE_CHECKING

from feedd.source.s3.direct.move import Gear

if TYPE_CHECKING:
    from feedd.source.s3.direct.move import Move

_MOVERS_MAX = 2
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP


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
        gear = Gear()
        try:
            while not self._closing:
                for fd, _ in self._epoll.poll():
                    move = moves.get(fd)
                    if move is not None:
                        move.step(gear)
                        if move.over:
                            self._end(moves, move)
                    elif fd == self._wake_out:
                        self._woken(moves, gear)
        finally:
            self._woken(moves, gear)
            for move in list(moves.values()):
                move.stop()
                self._end(moves, move)
            gear.close()

    def _woken(self, moves: dict[int, Move], gear: Gear) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_out, 4096):
                pass
        with self._lock:
            new, self._new = self._new, []
        for move in new:
            moves[move.sock_fd] = move
            if self._closing:
                move.stop()
            move.prepare(gear)
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
