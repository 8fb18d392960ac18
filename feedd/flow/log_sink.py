"""Where everything that a process says goes: a stream that never raises, never waits long, and counts its losses."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

DROPPED_EVENT: Final = "log lines were dropped"
_FULL: Final = "its buffer is full, because no process reads it"
WAIT_S: Final = 0.2
"""Longest wait for room in a full pipe or terminal. After a line was dropped, nothing waits until a line is written."""


def _plain(count: int, reason: str) -> str:
    return f"feedd: {DROPPED_EVENT}: {count} ({reason})\n"


class LogSink(io.TextIOBase):
    """A text stream for a log, safe to call from any thread.

    A write that fails is dropped and counted. The count is written before the next line that can be written.

    Attributes:
        describe: renders the line that reports dropped lines, from their number and the reason.
        on_drop: is called with the reason of each loss.
    """

    def __init__(self, fd: int | None, write: Callable[[bytes | memoryview], int]) -> None:
        """Write to a descriptor or a stream.

        Args:
            fd: descriptor that ``write`` writes to; None: there is none, so nothing can wait for room.
            write: writes a part of the bytes and returns its length, as ``os.write`` does.
        """
        self.describe: Callable[[int, str], str] = _plain
        self.on_drop: Callable[[str], None] = lambda _reason: None
        self._fd = fd
        self._write = write
        self._piece_bytes = sys.maxsize if fd is None else _piece_bytes(fd)
        # Reentrant, because the garbage collector may run a destructor that warns while a line is written.
        self._lock = threading.RLock()
        self._unsaid_count = 0  # dropped, and not yet reported by a line
        self._untaken_count = 0  # dropped, and not yet returned by `settle`
        self._reason = ""
        self._is_torn = False  # the last line has no end

    @classmethod
    def of(cls, stream: TextIO | LogSink | None) -> LogSink:
        """Return ``stream`` if it is a sink, else a sink that writes to it; None: one that writes nothing."""
        if isinstance(stream, LogSink):
            return stream
        sink = cls(None, len if stream is None else lambda data: _write_text(stream, data))
        sink.isatty = lambda: stream is not None and stream.isatty()  # type: ignore[method-assign]  # as the stream
        return sink

    @classmethod
    def on(cls, fd: int) -> LogSink:
        """Return a sink that writes to a descriptor."""
        return cls(fd, lambda data: os.write(fd, data))

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a constant here
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # a constant here
        """How characters are written that have no bytes."""
        return "backslashreplace"

    def fileno(self) -> int:
        """Return the descriptor.

        Raises:
            io.UnsupportedOperation: it has none.
        """
        return super().fileno() if self._fd is None else self._fd

    def isatty(self) -> bool:
        """Return whether a person may read it."""
        return self._fd is not None and os.isatty(self._fd)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write ``text`` or drop it.

        Raises:
            TypeError: ``text`` is not a str.
        """
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        if text:
            with self._lock:
                if not self._report() or not self._put(text, WAIT_S):
                    self._drop()
        return len(text)

    def settle(self) -> int:
        """Report earlier losses if writing works again; return the number of writes dropped since the last call."""
        with self._lock:
            self._report()
            count, self._untaken_count = self._untaken_count, 0
        return count

    def _report(self) -> bool:
        """Write the count of dropped lines, if there are any; return whether nothing is left to report."""
        if not self._unsaid_count:
            return True
        if not self._put(self.describe(self._unsaid_count, self._reason), 0.0):
            return False
        self._unsaid_count = 0
        return True

    def _drop(self) -> None:
        self._unsaid_count += 1
        self._untaken_count += 1
        self.on_drop(self._reason)

    def _put(self, text: str, wait_s: float) -> bool:
        """Write ``text``; return whether all of it was written."""
        # A line that was cut off ends here, so that readers find the next one.
        left = memoryview(("\n" * self._is_torn + text).encode("utf-8", "backslashreplace"))
        end_s = time.monotonic() + wait_s
        while left:
            try:
                self._await_room(end_s)
                count = self._write(left[: self._piece_bytes])
                if not count:
                    raise BlockingIOError("nothing was written")
            except (OSError, ValueError) as error:
                is_passing = isinstance(error, BlockingIOError | InterruptedError)
                if is_passing and self._fd is not None and time.monotonic() < end_s:
                    continue
                self._reason = _FULL if isinstance(error, BlockingIOError) else _reason(error)
                return self._is_torn and bytes(left) == b"\n"  # only the end of the line is missing, and follows
            self._is_torn = left[count - 1] != ord("\n")
            left = left[count:]
        self._is_torn = False  # a progress display ends its lines later
        return True

    def _await_room(self, end_s: float) -> None:
        """Wait until a write would not block.

        Raises:
            BlockingIOError: it would at ``end_s``.
        """
        if self._fd is not None:
            room = select.poll()
            room.register(self._fd, select.POLLOUT)
            if not room.poll(max(0.0, end_s - time.monotonic()) * 1000):
                raise BlockingIOError


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _write_text(stream: TextIO, data: bytes | memoryview) -> int:
    stream.write(bytes(data).decode())
    stream.flush()
    return len(data)


def _piece_bytes(fd: int) -> int:
    """Return the largest write that blocks in no case after the descriptor had room."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(fd).st_mode) or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK:
            return sys.maxsize
    return 1 if os.isatty(fd) else select.PIPE_BUF  # a terminal with any room counts as ready


def take_stderr() -> None:
    """Make ``sys.stderr`` a sink. From then on, no print, log line, traceback or exit fails because of it.

    Standard descriptors that are closed become ``/dev/null``. Otherwise the next file opened would get their numbers,
    and libraries would write their messages into that file.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - the function's signature
    _stop_blocking(2)
    # A stream that is not the process's own, as in tests, stays the one that is written to.
    is_own = sys.stderr is None or sys.stderr is sys.__stderr__
    sys.stderr = cast("TextIO", LogSink.on(2) if is_own else LogSink.of(sys.stderr))


def _stop_blocking(fd: int) -> None:
    """Make a pipe or terminal non-blocking for this process and its children, not for others that write to it."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode) and not os.isatty(fd):
        return
    with contextlib.suppress(OSError):  # of another user, or nobody reads the pipe: the sink asks for room first
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.dup2(own, fd)
        os.close(own)
