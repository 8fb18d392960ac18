"""A body on its way from a connection's socket straight into a file, seen from the event loop."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from feedd.errors import CacheUnavailable
from feedd.flow.mapping import FilePlace, file_of
from feedd.source.s3.direct.mover import Move, Mover, Movers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.values import ReadProgress

_BUFFER_BYTES = 256 << 10
_WORTH_IT_BYTES = 256 << 10  # below that a turn through another thread costs more than it saves


class FileBody:
    """Takes a transport's socket over until the body is whole; the transport is paused meanwhile.

    ``ended(error)`` is called on the loop: None: all is in the file, and the transport reads again. It is not called
    after ``stop``, which returns when nothing can be written any more.
    """

    def __init__(
        self,
        mover: Mover,
        transport: Any,  # noqa: ANN401 - of whichever loop: uvloop's are no asyncio.Transport
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._mover = mover
        self._transport = transport
        self._progress = progress
        self._ended = ended
        transport.pause_reading()
        sock_fd = transport.get_extra_info("socket").fileno()
        self._move = Move(sock_fd, place, size_bytes, progress, self._over)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand it to the thread."""
        self._loop = loop
        self._mover.add(self._move)

    def stop(self) -> None:
        """End it here."""
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
            got = move.file_error.strerror
            self._ended(CacheUnavailable(f"expected to write what was received, got {got}", stage="source"))
        elif move.socket_error is not None:
            self._ended(move.socket_error)
        else:
            self._transport.resume_reading()
            self._ended(None)


class FileWrite:
    """Writes what was decrypted into a buffer to the target's file: whole pages that need not be cleared first.

    The buffer is shared by all connections of a pool, and stays in the processor's cache: a protocol is asked for
    its buffer and told what is in it in one turn of the loop.
    """

    def __init__(self, buffer: memoryview, place: FilePlace, size_bytes: int) -> None:
        self._buffer = buffer
        self._fd, self._start, self._landed = place
        self._size_bytes = size_bytes

    def buffer(self, at: int) -> memoryview:
        """Return where the bytes from ``at`` on may be put, never beyond the body's end."""
        return self._buffer[: self._size_bytes - at]

    def write(self, at: int, size_bytes: int) -> None:
        """Write that much of the buffer.

        Raises:
            CacheUnavailable: the file cannot be written.
        """
        try:
            done = 0
            while done < size_bytes:
                done += os.pwrite(self._fd, self._buffer[done:size_bytes], self._start + at + done)
        except OSError as error:
            message = f"expected to write what was received, got {error.strerror}"
            raise CacheUnavailable(message, stage="source") from error
        if self._landed is not None:
            self._landed(self._start + at, self._buffer[:size_bytes])


class Files:
    """How bodies get into files: made once per pool, plain connections with movers, those with TLS without."""

    def __init__(self, movers: Movers | None) -> None:
        self._movers = movers
        self._buffer = None if movers else memoryview(bytearray(_BUFFER_BYTES))

    def body(
        self,
        transport: Any,  # noqa: ANN401 - see FileBody
        target: memoryview,
        progress: ReadProgress,
        ended: Callable[[Exception | None], object],
    ) -> FileBody | None:
        """Return what moves the rest of a body to ``target``'s file; None where it has to come through memory.

        So much of ``target`` as ``progress`` says is filled already.
        """
        here = _place(target, progress.filled_bytes) if self._movers is not None else None
        if here is None or self._movers is None:
            return None
        done = progress.filled_bytes
        place = FilePlace(here.fd, here.at + done, here.landed)
        return FileBody(self._movers.least_busy(), transport, place, target.nbytes - done, progress, ended)

    def write(self, target: memoryview, done: int) -> FileWrite | None:
        """Return what writes decrypted bytes to ``target``'s file; None where they may as well go there directly.

        The first ``done`` bytes of ``target`` are filled already.
        """
        place = _place(target, done) if self._buffer is not None else None
        return None if place is None or self._buffer is None else FileWrite(self._buffer, place, target.nbytes)


def _place(target: memoryview, done: int) -> FilePlace | None:
    place = file_of(target) if target.nbytes >= _WORTH_IT_BYTES else None
    if place is not None and place.landed is not None and done:
        place.landed(place.at, target[:done])
    return place
