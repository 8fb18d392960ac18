"""Chooses the cheapest way from the socket to the sink for each body, and has the small bodies."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from feedd.errors import BadResponse, CacheUnavailable
from feedd.fetch.s3.tls import TlsTransport
from feedd.fetch.s3.transfer import DecryptedTransfer, SplicedTransfer, Write
from feedd.flow.range_sinks import FileSink, MemorySink

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.fetch.s3.transfer import BodyTransfer, TransferThread, TransferThreads
    from feedd.range_sink import RangeSink
    from feedd.values import ReadProgress

BUFFER_BYTES: Final = 272 << 10  # size of the largest small body plus a head
_SPARES_MAX: Final = 64  # buffers kept, 17 MiB in total
_NOTHING: Final = memoryview(b"")
HEAD_BYTES_MAX: Final = 16 * 1024  # S3's heads are below 1 KiB
_WORTH_IT_BYTES: Final = 256 << 10  # smaller bodies are cheaper on the loop than through another thread


class HandedBody:
    """A body received into its own buffer; a thread writes it to the file, together with other small bodies.

    For files on a disk. A write may wait for the disk: milliseconds if free pages are short, for ever if the disk
    hangs. Measured with 100 KB and checksums (ext4, two busy cores, receiving included): 88 us of the event
    loop, 40 to 110 us in the thread. Writing on the loop takes 86 us.

    Args:
        sink: piece of the file for the body.
        progress: follows the body.
        ended: called on the loop with the error, as with ``MovedBody``.
        transfer_thread: writes the file.
        transport: receives the body.
        loop: event loop of the transport.
        spares: unused buffers.
        surplus: room for unexpected bytes.
    """

    def __init__(
        self,
        sink: FileSink,
        progress: ReadProgress,
        ended: Callable[[Exception | None], object],
        *,
        transfer_thread: TransferThread,
        transport: Any,  # noqa: ANN401 - see MovedBody
        loop: asyncio.AbstractEventLoop,
        spares: list[memoryview],
        surplus: memoryview,
    ) -> None:
        self._sink = sink
        self._left_bytes = sink.size_bytes  # bytes not received yet
        self._progress = progress
        self._transfer_thread, self._transport, self._loop = transfer_thread, transport, loop
        self._spares, self._surplus = spares, surplus
        self._ended = ended
        self._memory = spares.pop() if spares else memoryview(bytearray(BUFFER_BYTES))
        self._buffered_bytes = 0
        self._write: Write | None = None

    def buffer(self) -> memoryview:
        """Return the buffer for the rest of the body; after its end, a small buffer that reveals surplus bytes."""
        if self._write is not None:
            return self._surplus
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
            write = Write(part, data, self._loop, self._over)
            self._transfer_thread.write(write)
        except OSError as error:
            raise unwritten(error) from error
        self._write = write
        if self._left_bytes:
            self._transport.pause_reading()

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
            self._transport.resume_reading()
        else:
            self._ended(None)

    def _give_back(self) -> None:
        memory, self._memory = self._memory, _NOTHING
        if memory.nbytes and len(self._spares) < _SPARES_MAX:
            self._spares.append(memory)


def unwritten(error: Exception) -> CacheUnavailable:
    """Return the error to raise if received bytes could not be written."""
    got = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    unwritten = CacheUnavailable(f"the received bytes cannot be written: {got}", stage="source")
    unwritten.__cause__ = error
    return unwritten


class Body(Protocol):
    """One body being received; ``progress`` follows it."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes, never beyond the body's end."""

    def received(self, size_bytes: int) -> None:
        """Handle bytes that were put into the buffer.

        Raises:
            CacheUnavailable: the sink's file cannot be written.
            BadResponse: there are more bytes than the body has.
        """

    def stop(self) -> None:
        """Stop using the sink. Does not wait for a write that a disk delays: the file's ``writers`` track it."""

    @property
    def waits_for_file(self) -> bool:
        """Whether the file delays the body, not the socket."""

    @property
    def whole(self) -> bool:
        """Whether all bytes were received and only the write is missing."""


class MemoryBody:
    """A body received straight into memory."""

    waits_for_file = False
    whole = False

    def __init__(self, memory: memoryview, progress: ReadProgress) -> None:
        self._memory = memory
        self._progress = progress

    def buffer(self) -> memoryview:
        """Return the rest of the memory."""
        return self._memory[self._progress.filled_bytes :]

    def received(self, size_bytes: int) -> None:
        """Count the received bytes."""
        _count(self._progress, size_bytes)

    def stop(self) -> None:
        """Do nothing: no thread uses the memory."""


class WrittenBody:
    """A body received into a buffer in the CPU cache, and written from there to a file in memory.

    Compared with receiving into the mapping, this costs one more copy of cached bytes, but saves page faults and the
    clearing of fresh pages. Measured on tmpfs, 100 KB: 37 against 73 us. The pages stay unmapped, and their checksum is
    computed from the buffer. Only for files in memory, because the write runs on the event loop.

    Args:
        sink: piece of the file for the body.
        size_bytes: size of the body.
        progress: follows the body.
        memory: the buffer; free for other uses after each ``received``.
    """

    waits_for_file = False
    whole = False

    def __init__(self, sink: FileSink, progress: ReadProgress, memory: memoryview) -> None:
        assert not sink.waits_for_disk, "the event loop must not wait for a disk"
        self._sink = sink
        self._progress = progress
        self._memory = memory

    def buffer(self) -> memoryview:
        """Return the buffer, cut to the rest of the body."""
        return self._memory[: self._sink.size_bytes - self._progress.filled_bytes]

    def received(self, size_bytes: int) -> None:
        """Write the bytes that were received into the buffer.

        Raises:
            CacheUnavailable: the file cannot be written.
        """
        self.write(self._memory[:size_bytes])

    def write(self, data: memoryview) -> None:
        """Write the next bytes of the body.

        Raises:
            CacheUnavailable: the file cannot be written.
        """
        try:
            self._sink.write_now(self._progress.filled_bytes, data)
        except OSError as error:
            raise unwritten(error) from error
        _count(self._progress, len(data))

    def stop(self) -> None:
        """Do nothing: writes happen only within ``received``."""


class MovedBody:
    """A body that a thread moves from the transport's socket to the sink's file while the transport is paused.

    ``ended(error)`` is called on the loop. None means that the whole body is in the file and the transport reads again.
    It is not called after ``stop``.
    """

    def __init__(
        self,
        transfer_thread: TransferThread,
        transport: Any,  # noqa: ANN401 - of whichever loop: uvloop's are no asyncio.Transport
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Exception | None], object],
    ) -> None:
        self._transfer_thread = transfer_thread
        self._transport = transport
        self._loop = loop
        self._ended = ended
        self._transfer: BodyTransfer | None = None

    def begin(self, sink: FileSink, progress: ReadProgress, first: memoryview) -> None:
        """Hand the body to the thread, with ``first``, the bytes received already.

        Raises:
            OSError: no descriptor or thread is left; the transport continues as before.
        """
        sock_fd = self._transport.get_extra_info("socket").fileno()
        cipher = self._transport.cipher if isinstance(self._transport, TlsTransport) else None
        if cipher is not None:
            move: BodyTransfer = DecryptedTransfer(cipher, sock_fd, sink, progress, self._over)
        else:
            move = SplicedTransfer(sock_fd, sink, progress, self._over)
        move.first = bytes(first)
        self._transport.pause_reading()
        try:
            self._transfer_thread.add(move)
        except OSError:
            self._transport.resume_reading()
            raise
        self._transfer = move

    def buffer(self) -> memoryview:
        """Raise, because a paused transport does not read."""
        raise AssertionError("a paused transport reads")

    def received(self, size_bytes: int) -> None:
        """Raise, because a paused transport does not read."""
        raise AssertionError(f"a paused transport read {size_bytes} bytes")

    def stop(self) -> None:
        """Stop the transfer."""
        if self._transfer is not None:
            self._transfer.stop()
            self._transfer_thread.look()

    @property
    def waits_for_file(self) -> bool:
        """Whether a write is running."""
        return self._transfer is not None and self._transfer.writing

    whole = False

    def _over(self, move: BodyTransfer) -> None:
        """Report the end of the transfer to the loop; called in the transfer thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the body
            self._loop.call_soon_threadsafe(self._report_end, move)

    def _report_end(self, move: BodyTransfer) -> None:
        if move.stopped or move is not self._transfer:
            return
        if move.file_error is not None:
            self._ended(unwritten(move.file_error))
        elif move.socket_error is not None:
            self._ended(move.socket_error)
        else:
            self._ended(None)
            if not self._transport.is_closing():
                self._transport.resume_reading()  # not earlier: the next bytes belong to no body


class Files:
    """Chooses the way of each body; one instance per connection pool.

    Args:
        transfer_threads: threads for bodies that go to files; None: bodies go to memory only.
    """

    def __init__(self, transfer_threads: TransferThreads | None) -> None:
        self._transfer_threads = transfer_threads
        self._memory = memoryview(bytearray(0 if transfer_threads is None else BUFFER_BYTES))
        self._surplus = memoryview(bytearray(1024))
        self._spares: list[memoryview] = []

    def with_head_buffer(self, sink: RangeSink) -> memoryview | None:
        """Return a buffer to receive a small body for a file together with its head, or None for another way.

        The buffer is free again as soon as the received bytes are processed. Compared with receiving the head alone:
        one ``recv`` and one ``pwrite`` instead of three and two.
        """
        return self._memory if isinstance(sink, FileSink) and 0 < sink.size_bytes < _WORTH_IT_BYTES else None

    def body(
        self,
        transport: Any,  # noqa: ANN401 - see MovedBody
        loop: asyncio.AbstractEventLoop,
        sink: RangeSink,
        progress: ReadProgress,
        ended: Callable[[Exception | None], object],
        first: memoryview = _NOTHING,
    ) -> Body:
        """Start a body whose bytes ``first`` have been received already.

        Raises:
            CacheUnavailable: the sink's file cannot be written, or no thread is left for it.
        """
        progress.filled_bytes = 0
        if not isinstance(sink, FileSink):
            assert isinstance(sink, MemorySink), "a sink is a file or memory"
            body = MemoryBody(sink.memory, progress)
            if first:
                body.buffer()[: len(first)] = first
                body.received(len(first))
            return body
        assert self._transfer_threads is not None, "bodies for files need threads"
        small = sink.size_bytes < _WORTH_IT_BYTES or (isinstance(transport, TlsTransport) and transport.cipher is None)
        if small and not sink.waits_for_disk:
            return self._written(sink, progress, first)
        try:
            transfer_thread = self._transfer_threads.for_file(sink)
            if not small:
                moved = MovedBody(transfer_thread, transport, loop, ended)
                moved.begin(sink, progress, first)
                return moved
        except OSError as error:  # no descriptor or thread is left; a file in memory needs none
            if not sink.waits_for_disk:
                return self._written(sink, progress, first)
            if not self._transfer_threads.started(sink):
                raise unwritten(error) from error
            transfer_thread = self._transfer_threads.for_file(sink)
        handed = HandedBody(
            sink,
            progress,
            ended,
            transfer_thread=transfer_thread,
            transport=transport,
            loop=loop,
            spares=self._spares,
            surplus=self._surplus,
        )
        if first:
            handed.take(first)
        return handed

    def _written(self, sink: FileSink, progress: ReadProgress, first: memoryview) -> WrittenBody:
        written = WrittenBody(sink, progress, self._memory)
        if first:
            written.write(first)
        return written


def _count(progress: ReadProgress, size_bytes: int) -> None:
    if progress.first_byte_s is None:
        progress.first_byte_s = time.monotonic()
    progress.filled_bytes += size_bytes
