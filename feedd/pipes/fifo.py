"""The FIFO of one epoch, from the writer's side.

A FIFO has a writer from the moment that it has its name. So a reader never waits in ``open``, and one that does not
block never reads a false end of file. Nothing is written before a reader is there, because a pipe without readers
forgets its bytes. Nothing is written either to a FIFO that another user made, who could read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
import secrets
import select
import stat
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from feedd.errors import BadRequest, CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.pipes.fifo_events import FifoEvents

PIPE_BYTES: Final = 1 << 20
"""Size of the pipe's buffer; more needs a privilege."""


class ReaderClosed(Exception):
    """The reader closed the FIFO after it had taken some bytes."""


class Fifo:
    """One FIFO, with this process as its writer.

    Args:
        path: its name.
        events: tells when readers come and take bytes.
        on_open: called when a reader is there.

    Attributes:
        path: its name.
        written_bytes: bytes written; the reader may not have taken all of them.
    """

    def __init__(self, path: Path, events: FifoEvents, on_open: Callable[[], object]) -> None:
        self.path = path
        self.written_bytes = 0
        self._events = events
        self._on_open = on_open
        self._opened = asyncio.Event()
        self._fd = self._watch = -1

    def __repr__(self) -> str:
        return f"Fifo({self.path}, {self.written_bytes} bytes)"

    def make(self) -> Self:
        """Create the FIFO, or use one that is there: a reader may wait in it for a writer that was killed.

        Raises:
            BadRequest: something else has this name, or a FIFO of another user than this process's and root.
            CacheUnavailable: the file system refuses.
        """
        drafts = f".{self.path.name}.", ".feedd"
        draft = self.path.with_name(secrets.token_hex(8).join(drafts))  # others cannot know it, nor be in its way
        try:
            if os.path.lexists(self.path):
                self._connect(self.path)
            else:
                for left in self.path.parent.glob(f"{glob.escape(drafts[0])}*{drafts[1]}"):  # by a killed process
                    with contextlib.suppress(OSError):
                        left.unlink()
                os.mkfifo(draft)
                self._connect(draft)
                draft.rename(self.path)
        except OSError as error:
            self.close()
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            message = f"expected to create a FIFO, got {(error.strerror or str(error)).lower()}"
            raise CacheUnavailable(message, object=str(self.path), stage="pipe") from error
        self._look()  # the reader of a FIFO that was there
        return self

    def _connect(self, path: Path) -> None:
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._check_own(os.fstat(found))
            fifo = Path(f"/proc/self/fd/{found}")  # the file that was checked, whatever has the name now
            self._watch = self._events.watch(fifo, self._look)
            reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # a writer alone may not open it
            try:
                self._fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            finally:
                os.close(reader)
        finally:
            os.close(found)
        with contextlib.suppress(PermissionError):  # the user has too many large pipes
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def _check_own(self, status: os.stat_result) -> None:
        user = os.geteuid()
        if not stat.S_ISFIFO(status.st_mode):
            message, hint = "expected no file of this name, or a FIFO, got another kind of file", "move it away"
        elif status.st_uid not in {user, 0}:
            message = f"expected a FIFO of user {user} or root, got one of user {status.st_uid}"
            hint = "remove it, and let only the job's user write to this folder: others could read the data"
        else:
            return
        raise BadRequest(message, object=str(self.path), hint=hint, stage="pipe")

    @property
    def has_reader(self) -> bool:
        """Whether a process has the FIFO open for reading now."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return not poll.poll(0)

    @property
    def is_opened(self) -> bool:
        """Whether a reader came, and did not leave before its first byte."""
        return self._opened.is_set()

    @property
    def taken_bytes(self) -> int:
        """Bytes that the reader took."""
        (left,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))
        return self.written_bytes - int(left)

    async def write(self, data: memoryview) -> None:
        """Write bytes, as the reader takes them.

        Raises:
            ReaderClosed: the reader closed the FIFO.
        """
        await self._send(data.nbytes, lambda at: os.write(self._fd, data[at : at + PIPE_BYTES]))

    async def splice(self, fd: int, size_bytes: int) -> None:
        """Write the first bytes of a memory file, without copying them: the file must not change afterwards.

        Raises:
            ReaderClosed: the reader closed the FIFO.
        """
        flags = os.SPLICE_F_NONBLOCK
        await self._send(size_bytes, lambda at: os.splice(fd, self._fd, size_bytes - at, offset_src=at, flags=flags))

    async def finish(self) -> None:
        """Wait until all bytes can be left to the reader: it is there, or has taken some.

        Raises:
            ReaderClosed: the reader closed the FIFO before it had taken all bytes.
        """
        while not self.has_reader and self.taken_bytes < self.written_bytes:
            await self._again()

    async def _send(self, size_bytes: int, send: Callable[[int], int]) -> None:
        done = 0
        while done < size_bytes:
            try:
                count = send(done)
            except BlockingIOError:
                await self._events.writable(self._fd)
            except BrokenPipeError:
                await self._again()
            else:
                done += count
                self.written_bytes += count

    async def _again(self) -> None:
        """Wait for the next reader if the last one has taken nothing.

        Raises:
            ReaderClosed: it has taken some bytes.
        """
        if self.taken_bytes:
            raise ReaderClosed
        self._opened.clear()
        await self._opened.wait()

    def _look(self) -> None:
        if self._fd >= 0 and self.has_reader:
            self._opened.set()
            self._on_open()

    def close(self) -> None:
        """Close the FIFO, which is the end of file for its reader, and remove its name; idempotent."""
        if self._watch >= 0:
            self._events.forget(self._watch)
            self._watch = -1
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(fd)
