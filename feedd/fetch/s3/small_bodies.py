"""Small bodies on their way to a disk: received on the loop, written by a thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from feedd.errors import BadResponse, CacheUnavailable
from feedd.fetch.s3.small_writes import Write

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.fetch.s3.transfer_threads import TransferThread
    from feedd.flow.mapping import FilePlace
    from feedd.values import ReadProgress

BUFFER_BYTES: Final = 272 << 10  # the largest of small bodies, and a head
_SPARES_MAX: Final = 64  # buffers kept: 17 MiB
_NOTHING: Final = memoryview(b"")


class Via(NamedTuple):
    """What a ``HandedBody`` passes through.

    Attributes:
        mover: writes.
        transport: receives.
        loop: where it does.
        spares: buffers nobody uses.
        surplus: room for what nobody asked for.
    """

    transfer_thread: TransferThread
    transport: Any  # see MovedBody
    loop: asyncio.AbstractEventLoop
    spares: list[memoryview]
    surplus: memoryview


class HandedBody:
    """Received into a buffer of its own, and written from there by a thread, together with others that are small.

    For files on a disk: a write may have to wait for it, for milliseconds when pages are short and for good where it
    hangs. Measured with 100 KB and checksums (two busy cores, receiving included): 88 us of the event loop each on
    ext4, as writing there takes 86, and 40 to 110 us in the thread.

    ``ended(error)`` is called on the loop as ``MovedBody``'s is.
    """

    def __init__(
        self,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        via: Via,
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._place = place
        self._left_bytes = size_bytes  # not received yet
        self._progress = progress
        self._via = via
        self._ended = ended
        self._memory = via.spares.pop() if via.spares else memoryview(bytearray(BUFFER_BYTES))
        self._held_bytes = 0
        self._write: Write | None = None

    def buffer(self) -> memoryview:
        """Return memory for as much as is left; behind the body there is room to notice that more comes."""
        if self._write is not None:
            return self._via.surplus
        return self._memory[self._held_bytes :][: self._left_bytes]

    def received(self, size_bytes: int) -> None:
        """Hand what is there over, once it is all or the buffer is full.

        Raises:
            BadResponse: the body has ended.
            CacheUnavailable: there is no thread to write it.
        """
        if self._write is not None:
            raise BadResponse("expected one http answer, got more than that", stage="source")
        if self._progress.first_byte_s is None:
            self._progress.first_byte_s = time.monotonic()
        self._held_bytes += size_bytes
        self._left_bytes -= size_bytes
        if self._left_bytes and self._held_bytes < self._memory.nbytes:
            return
        at = self._place.at + self._progress.filled_bytes
        place, data = self._place._replace(at=at), self._memory[: self._held_bytes]
        write = Write(place, data, self._via.loop, self._over)
        try:
            self._via.transfer_thread.write(write)
        except OSError as error:
            raise unwritten(error) from error
        self._write = write
        if self._left_bytes:
            self._via.transport.pause_reading()

    def take(self, data: memoryview) -> None:
        """Take what was received together with the head; raises what ``received`` does."""
        self._memory[: data.nbytes] = data
        self.received(data.nbytes)

    def stop(self) -> None:
        """Have nothing more written, but for what is under way."""
        if self._write is None:
            self._give_back()
        else:
            self._write.stopped = True

    @property
    def waits_for_file(self) -> bool:
        """Whether all that can be received is, and not written yet."""
        return self._write is not None

    @property
    def whole(self) -> bool:
        """Whether all of it was received."""
        return not self._left_bytes

    def _over(self, write: Write) -> None:
        self._write = None
        if write.stopped:
            self._give_back()  # not before: until now the thread may have looked at it
            return
        if write.error is not None:
            self._ended(unwritten(write.error))
            return
        self._progress.filled_bytes += self._held_bytes
        self._held_bytes = 0
        if self._left_bytes:
            self._via.transport.resume_reading()
        else:
            self._ended(None)

    def _give_back(self) -> None:
        memory, self._memory = self._memory, _NOTHING
        if memory.nbytes and len(self._via.spares) < _SPARES_MAX:
            self._via.spares.append(memory)


def unwritten(error: Exception) -> CacheUnavailable:
    """Return what to raise where bytes that came could not be written."""
    got = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    unwritten = CacheUnavailable(f"expected to write what was received, got {got}", stage="source")
    unwritten.__cause__ = error
    return unwritten
