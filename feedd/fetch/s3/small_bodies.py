"""Small bodies for files on a disk: received on the loop, written by a thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from feedd.errors import BadResponse, CacheUnavailable
from feedd.fetch.s3.small_writes import Write

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.fetch.s3.transfer_threads import TransferThread
    from feedd.flow.range_sinks import FileSink
    from feedd.values import ReadProgress

BUFFER_BYTES: Final = 272 << 10  # size of the largest small body plus a head
_SPARES_MAX: Final = 64  # buffers kept, 17 MiB in total
_NOTHING: Final = memoryview(b"")


class Via(NamedTuple):
    """The resources that a ``HandedBody`` uses.

    Attributes:
        transfer_thread: writes the file.
        transport: receives the body.
        loop: event loop of the transport.
        spares: unused buffers.
        surplus: room for unexpected bytes.
    """

    transfer_thread: TransferThread
    transport: Any  # see MovedBody
    loop: asyncio.AbstractEventLoop
    spares: list[memoryview]
    surplus: memoryview


class HandedBody:
    """A body received into its own buffer; a thread writes it to the file, together with other small bodies.

    For files on a disk. A write may wait for the disk: milliseconds if free pages are short, for ever if the disk
    hangs. Measured with 100 KB and checksums (ext4, two busy cores, receiving included): 88 us of the event
    loop, 40 to 110 us in the thread. Writing on the loop takes 86 us.

    ``ended(error)`` is called on the loop, as with ``MovedBody``.
    """

    def __init__(
        self,
        sink: FileSink,
        progress: ReadProgress,
        via: Via,
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._sink = sink
        self._left_bytes = sink.size_bytes  # bytes not received yet
        self._progress = progress
        self._via = via
        self._ended = ended
        self._memory = via.spares.pop() if via.spares else memoryview(bytearray(BUFFER_BYTES))
        self._buffered_bytes = 0
        self._write: Write | None = None

    def buffer(self) -> memoryview:
        """Return the buffer for the rest of the body; after its end, a small buffer that reveals surplus bytes."""
        if self._write is not None:
            return self._via.surplus
        return self._memory[self._buffered_bytes :][: self._left_bytes]

    def received(self, size_bytes: int) -> None:
        """Hand the buffer to the thread once the body is complete or the buffer full.

        Raises:
            BadResponse: the body has ended already.
            CacheUnavailable: there is no thread to write it.
        """
        if self._write is not None:
            raise BadResponse("expected one http answer, got more than that", stage="source")
        if self._progress.first_byte_s is None:
            self._progress.first_byte_s = time.monotonic()
        self._buffered_bytes += size_bytes
        self._left_bytes -= size_bytes
        if self._left_bytes and self._buffered_bytes < self._memory.nbytes:
            return
        start = self._progress.filled_bytes
        part, data = self._sink.part(start, start + self._buffered_bytes), self._memory[: self._buffered_bytes]
        try:
            write = Write(part, data, self._via.loop, self._over)
            self._via.transfer_thread.write(write)
        except OSError as error:
            raise unwritten(error) from error
        self._write = write
        if self._left_bytes:
            self._via.transport.pause_reading()

    def take(self, data: memoryview) -> None:
        """Take the bytes received together with the head; raises what ``received`` raises."""
        self._memory[: data.nbytes] = data
        self.received(data.nbytes)

    def stop(self) -> None:
        """Write nothing more; a running write is finished."""
        if self._write is None:
            self._give_back()
        else:
            self._write.stopped = True

    @property
    def waits_for_file(self) -> bool:
        """Whether a write is pending and nothing can be received."""
        return self._write is not None

    @property
    def whole(self) -> bool:
        """Whether the whole body was received."""
        return not self._left_bytes

    def _over(self, write: Write) -> None:
        self._write = None
        if write.stopped:
            self._give_back()  # not earlier, because the thread may still read the buffer
            return
        if write.error is not None:
            self._ended(unwritten(write.error))
            return
        self._progress.filled_bytes += self._buffered_bytes
        self._buffered_bytes = 0
        if self._left_bytes:
            self._via.transport.resume_reading()
        else:
            self._ended(None)

    def _give_back(self) -> None:
        memory, self._memory = self._memory, _NOTHING
        if memory.nbytes and len(self._via.spares) < _SPARES_MAX:
            self._via.spares.append(memory)


def unwritten(error: Exception) -> CacheUnavailable:
    """Return the error to raise if received bytes could not be written."""
    got = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    unwritten = CacheUnavailable(f"the received bytes cannot be written: {got}", stage="source")
    unwritten.__cause__ = error
    return unwritten
