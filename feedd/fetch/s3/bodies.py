"""Chooses the cheapest way from the socket to the target for each body."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from feedd.fetch.s3.body_transfer import DecryptedMove, SplicedMove
from feedd.fetch.s3.small_bodies import BUFFER_BYTES, HandedBody, Via, unwritten
from feedd.fetch.s3.tls_transport import TlsTransport
from feedd.flow.mapping import file_of, write_at

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from feedd.fetch.s3.body_transfer import BodyTransfer
    from feedd.fetch.s3.transfer_threads import TransferThread, TransferThreads
    from feedd.flow.mapping import FilePlace
    from feedd.values import ReadProgress

HEAD_BYTES_MAX: Final = 16 * 1024  # S3's heads are below 1 KiB
_WORTH_IT_BYTES: Final = 256 << 10  # smaller bodies are cheaper on the loop than through another thread
_NOTHING: Final = memoryview(b"")


class Body(Protocol):
    """One body being received; ``progress`` follows it."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes, never beyond the body's end."""

    def received(self, size_bytes: int) -> None:
        """Handle bytes that were put into the buffer.

        Raises:
            CacheUnavailable: the target's file cannot be written.
            BadResponse: there are more bytes than the body has.
        """

    def stop(self) -> None:
        """Stop using the target. Does not wait for a write that a disk delays: the file's ``writers`` track it."""

    @property
    def waits_for_file(self) -> bool:
        """Whether the file delays the body, not the socket."""

    @property
    def whole(self) -> bool:
        """Whether all bytes were received and only the write is missing."""


class MemoryBody:
    """A body received straight into the target, which is not a file."""

    waits_for_file = False
    whole = False

    def __init__(self, target: memoryview, progress: ReadProgress) -> None:
        self._target = target
        self._progress = progress

    def buffer(self) -> memoryview:
        """Return the rest of the target."""
        return self._target[self._progress.filled_bytes :]

    def received(self, size_bytes: int) -> None:
        """Count the received bytes."""
        _count(self._progress, size_bytes)

    def stop(self) -> None:
        """Do nothing: no thread uses the target."""


class WrittenBody:
    """A body received into a buffer in the CPU cache, and written from there to a file in memory.

    Compared with receiving into the mapping, this costs one more copy of cached bytes, but saves page faults and the
    clearing of fresh pages. Measured on tmpfs, 100 KB: 37 against 73 us. The pages stay unmapped, and their checksum is
    computed from the buffer. Only for files in memory, because the write runs on the event loop.

    Args:
        place: region of the file for the body.
        size_bytes: size of the body.
        progress: follows the body.
        memory: the buffer; free for other uses after each ``received``.
    """

    waits_for_file = False
    whole = False

    def __init__(self, place: FilePlace, size_bytes: int, progress: ReadProgress, memory: memoryview) -> None:
        assert place.in_memory, "the event loop must not wait for a disk"
        self._place = place
        self._size_bytes = size_bytes
        self._progress = progress
        self._memory = memory

    def buffer(self) -> memoryview:
        """Return the buffer, cut to the rest of the body."""
        return self._memory[: self._size_bytes - self._progress.filled_bytes]

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
        at = self._place.at + self._progress.filled_bytes
        try:
            write_at(self._place.fd, data, at)
        except OSError as error:
            raise unwritten(error) from error
        if self._place.landed is not None:
            self._place.landed(at, data, begins=not self._progress.filled_bytes)
        _count(self._progress, len(data))

    def stop(self) -> None:
        """Do nothing: writes happen only within ``received``."""


class MovedBody:
    """A body that a thread moves from the transport's socket to the target's file while the transport is paused.

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
        self._move: BodyTransfer | None = None

    def begin(self, place: FilePlace, size_bytes: int, progress: ReadProgress, first: memoryview) -> None:
        """Hand the body to the thread, with ``first``, the bytes received already.

        Raises:
            OSError: no descriptor or thread is left; the transport continues as before.
        """
        sock_fd = self._transport.get_extra_info("socket").fileno()
        if isinstance(self._transport, TlsTransport):
            move: BodyTransfer = DecryptedMove(self._transport.cipher, sock_fd, place, size_bytes, progress, self._over)
        else:
            move = SplicedMove(sock_fd, place, size_bytes, progress, self._over)
        move.first = bytes(first)
        self._transport.pause_reading()
        try:
            self._transfer_thread.add(move)
        except OSError:
            self._transport.resume_reading()
            raise
        self._move = move

    def buffer(self) -> memoryview:
        """Raise, because a paused transport does not read."""
        raise AssertionError("a paused transport reads")

    def received(self, size_bytes: int) -> None:
        """Raise, because a paused transport does not read."""
        raise AssertionError(f"a paused transport read {size_bytes} bytes")

    def stop(self) -> None:
        """Stop the transfer."""
        if self._move is not None:
            self._move.stop()
            self._transfer_thread.look()

    @property
    def waits_for_file(self) -> bool:
        """Whether a write is running."""
        return self._move is not None and self._move.writing

    whole = False

    def _over(self, move: BodyTransfer) -> None:
        """Report the end of the transfer to the loop; called in the transfer thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the body
            self._loop.call_soon_threadsafe(self._tell, move)

    def _tell(self, move: BodyTransfer) -> None:
        if move.stopped or move is not self._move:
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
        transfer_threads: threads for bodies that go to files; None: every body is received straight into its target.
    """

    def __init__(self, transfer_threads: TransferThreads | None) -> None:
        self._transfer_threads = transfer_threads
        self._memory = memoryview(bytearray(0 if transfer_threads is None else BUFFER_BYTES))
        self._surplus = memoryview(bytearray(1024))
        self._spares: list[memoryview] = []

    def at_once(self, target: memoryview) -> memoryview | None:
        """Return a buffer to receive a small body for a file together with its head, or None for another way.

        The buffer is free again as soon as the received bytes are processed. Compared with receiving the head alone:
        one ``recv`` and one ``pwrite`` instead of three and two.
        """
        small = self._transfer_threads is not None and 0 < target.nbytes < _WORTH_IT_BYTES
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
        """Start a body whose bytes ``first`` have been received already.

        Raises:
            CacheUnavailable: the target's file cannot be written, or no thread is left for it.
        """
        progress.filled_bytes = 0
        place = file_of(target) if target.nbytes and self._transfer_threads is not None else None
        if place is None or self._transfer_threads is None:
            target[: len(first)] = first
            if first:
                _count(progress, len(first))
            return MemoryBody(target, progress)
        small = target.nbytes < _WORTH_IT_BYTES
        if small and place.in_memory:
            return self._written(place, target.nbytes, progress, first)
        try:
            transfer_thread = self._transfer_threads.for_file(place)
            if not small:
                moved = MovedBody(transfer_thread, transport, loop, ended)
                moved.begin(place, target.nbytes, progress, first)
                return moved
        except OSError as error:  # no descriptor or thread is left; a file in memory needs none
            if place.in_memory:
                return self._written(place, target.nbytes, progress, first)
            if not self._transfer_threads.started(place):
                raise unwritten(error) from error
            transfer_thread = self._transfer_threads.for_file(place)
        handed = HandedBody(
            place, target.nbytes, progress, Via(transfer_thread, transport, loop, self._spares, self._surplus), ended
        )
        if first:
            handed.take(first)
        return handed

    def _written(self, place: FilePlace, size_bytes: int, progress: ReadProgress, first: memoryview) -> WrittenBody:
        written = WrittenBody(place, size_bytes, progress, self._memory)
        if first:
            written.write(first)
        return written


def _count(progress: ReadProgress, size_bytes: int) -> None:
    if progress.first_byte_s is None:
        progress.first_byte_s = time.monotonic()
    progress.filled_bytes += size_bytes
