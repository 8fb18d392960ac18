"""Where the body of an answer goes, and on which way: the bytes are received once, by the cheapest one there is."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from feedd.errors import CacheUnavailable
from feedd.flow.mapping import file_of, write_at
from feedd.source.s3.direct.move import DecryptedMove, SplicedMove
from feedd.source.s3.direct.tunnel import Tunnel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.flow.mapping import FilePlace
    from feedd.source.s3.direct.move import Move
    from feedd.source.s3.direct.mover import Mover, Movers
    from feedd.values import ReadProgress

HEAD_BYTES_MAX: Final = 16 * 1024  # S3's heads are below 1 KiB
_WORTH_IT_BYTES: Final = 256 << 10  # below that a turn through another thread costs more than it saves
_NOTHING: Final = memoryview(b"")


class Body(Protocol):
    """One body on its way; ``progress`` follows it."""

    def buffer(self) -> memoryview:
        """Return where the next bytes may be put, never beyond the body's end."""

    def received(self, size_bytes: int) -> None:
        """Take note of bytes that were put there.

        Raises:
            CacheUnavailable: the target's file cannot be written.
        """

    def stop(self) -> None:
        """Let go of the target: nothing is written to it from here on."""


class MemoryBody:
    """Received straight into the target."""

    def __init__(self, target: memoryview, progress: ReadProgress) -> None:
        self._target = target
        self._progress = progress

    def buffer(self) -> memoryview:
        """Return what is left of the target."""
        return self._target[self._progress.filled_bytes :]

    def received(self, size_bytes: int) -> None:
        """Count."""
        _count(self._progress, size_bytes)

    def stop(self) -> None:
        """Nothing to stop."""


class WrittenBody:
    """Received into memory that stays in the processor's cache, and written to the target's file from there.

    Against receiving into the mapping: a copy more, of bytes that are hot, and no fault and no clearing of fresh pages.
    Measured on tmpfs, 100 KB: 37 against 73 us. The pages stay unmapped, and their checksum is taken from that memory.

    Args:
        place: where in the file the body goes.
        size_bytes: of the body.
        progress: follows it.
        memory: what it passes through; anybody's again after each ``received``.
    """

    def __init__(self, place: FilePlace, size_bytes: int, progress: ReadProgress, memory: memoryview) -> None:
        self._place = place
        self._size_bytes = size_bytes
        self._progress = progress
        self._memory = memory

    def buffer(self) -> memoryview:
        """Return memory for as much as is left."""
        return self._memory[: self._size_bytes - self._progress.filled_bytes]

    def received(self, size_bytes: int) -> None:
        """Write what was put there.

        Raises:
            CacheUnavailable: the file cannot be written.
        """
        self.write(self._memory[:size_bytes])

    def write(self, data: memoryview) -> None:
        """Write what comes next.

        Raises:
            CacheUnavailable: the file cannot be written.
        """
        fd, at, landed = self._place
        at += self._progress.filled_bytes
        try:
            write_at(fd, data, at)
        except OSError as error:
            raise _unwritten(error) from error
        if landed is not None:
            landed(at, data, begins=not self._progress.filled_bytes)
        _count(self._progress, len(data))

    def stop(self) -> None:
        """Nothing to stop: it writes only while it is told of bytes."""


class MovedBody:
    """Moved from the transport's socket to the target's file by a thread; the transport is paused meanwhile.

    ``ended(error)`` is called on the loop: None: all is in the file, and the transport reads again. It is not called
    after ``stop``, which returns when nothing can be written any more.
    """

    def __init__(
        self,
        movers: Movers,
        transport: Any,  # noqa: ANN401 - of whichever loop: uvloop's are no asyncio.Transport
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._movers = movers
        self._transport = transport
        self._loop = loop
        self._ended = ended
        self._move: Move | None = None
        self._mover: Mover | None = None

    def begin(self, place: FilePlace, size_bytes: int, progress: ReadProgress) -> None:
        """Hand what is left of the body to the thread.

        Raises:
            OSError: there are no descriptors for that; the transport goes on as it was.
        """
        sock_fd = self._transport.get_extra_info("socket").fileno()
        self._mover = self._movers.for_file(place.fd)
        if isinstance(self._transport, Tunnel):
            self._move = DecryptedMove(self._transport.cipher, sock_fd, place, size_bytes, progress, self._over)
        else:
            self._move = SplicedMove(sock_fd, place, size_bytes, progress, self._over)
        self._transport.pause_reading()
        self._mover.add(self._move)

    def buffer(self) -> memoryview:
        """Raise: the transport does not read."""
        raise AssertionError("a paused transport reads")

    def received(self, size_bytes: int) -> None:
        """Raise: the transport does not read."""
        raise AssertionError(f"a paused transport read {size_bytes} bytes")

    def stop(self) -> None:
        """End it here."""
        if self._move is not None and self._mover is not None:
            self._move.stop()
            self._mover.look()

    def _over(self, move: Move) -> None:
        """Called in the mover's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._tell, move)

    def _tell(self, move: Move) -> None:
        if move.stopped:
            return
        if move.file_error is not None:
            self._ended(_unwritten(move.file_error))
        elif move.socket_error is not None:
            self._ended(move.socket_error)
        else:
            self._ended(None)
            if not self._transport.is_closing():
                self._transport.resume_reading()  # only now: what comes next is no part of the body


class Files:
    """Chooses each body's way: made once per pool.

    Args:
        movers: threads for bodies that are large and go to a file; None: all are received where they belong.
    """

    def __init__(self, movers: Movers | None) -> None:
        self._movers = movers
        self._memory = memoryview(bytearray(0 if movers is None else _WORTH_IT_BYTES + HEAD_BYTES_MAX))

    def at_once(self, target: memoryview) -> memoryview | None:
        """Return where a small body that goes to a file is received together with its head, as both mostly are here.

        Anybody's again as soon as what was received is looked at. Against the head by itself: one ``recv`` and one
        ``pwrite`` instead of three and two. None: the body goes another way.
        """
        small = self._movers is not None and 0 < target.nbytes < _WORTH_IT_BYTES
        return self._memory if small and file_of(target) is not None else None

    def body(
        self,
        transport: Any,  # noqa: ANN401 - see MovedBody
        loop: asyncio.AbstractEventLoop,
        target: memoryview,
        progress: ReadProgress,
        ended: Callable[[Exception | None], object],
        first: memoryview = _NOTHING,
    ) -> Body:
        """Begin with a body, of which ``first`` has come already.

        Raises:
            CacheUnavailable: the target's file cannot be written.
        """
        progress.filled_bytes = 0
        place = file_of(target) if target.nbytes and self._movers is not None else None
        if place is not None and target.nbytes < _WORTH_IT_BYTES:
            written = WrittenBody(place, target.nbytes, progress, self._memory)
            if first:
                written.write(first)
            return written
        done = len(first)
        target[:done] = first
        if done:
            _count(progress, done)
        if place is None or self._movers is None or done == target.nbytes:
            return MemoryBody(target, progress)
        if place.landed is not None and done:
            place.landed(place.at, target[:done], begins=True)
        moved = MovedBody(self._movers, transport, loop, ended)
        try:
            moved.begin(place._replace(at=place.at + done), target.nbytes - done, progress)
        except OSError:  # no descriptor is left for a copy of the socket or the file: memory needs none
            return MemoryBody(target, progress)
        return moved


def _count(progress: ReadProgress, size_bytes: int) -> None:
    if progress.first_byte_s is None:
        progress.first_byte_s = time.monotonic()
    progress.filled_bytes += size_bytes


def _unwritten(error: OSError) -> CacheUnavailable:
    return CacheUnavailable(f"expected to write what was received, got {error.strerror}", stage="source")
