"""A body on its way from a connection's socket straight into a file, seen from the event loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from feedd.errors import CacheUnavailable
from feedd.flow.mapping import file_of, populate
from feedd.source.s3.direct.mover import Move, Mover

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.values import ReadProgress

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
        place: tuple[int, int],
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
        file_fd, at = place
        self._move = Move(sock_fd, (file_fd, at), size_bytes, progress, self._over)

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


def file_body(
    mover: Mover | None,
    transport: Any,  # noqa: ANN401 - see FileBody
    target: memoryview,
    progress: ReadProgress,
    ended: Callable[[Exception | None], object],
) -> FileBody | None:
    """Return what moves the rest of a body into ``target``'s file; None where it has to come through memory."""
    place = file_of(target) if target.nbytes >= _WORTH_IT_BYTES else None
    if place is None:
        return None
    if mover is None or transport.get_extra_info("sslcontext") is not None:
        populate(target)
        return None
    return FileBody(mover, transport, place, target.nbytes, progress, ended)
