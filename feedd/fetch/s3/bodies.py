"""Where the body of an answer goes, and on which way: the bytes are received once, by the cheapest one there is."""

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
            BadResponse: more came than the body has.
        """

    def stop(self) -> None:
        """Let go of the target. Does not wait for a write that a disk holds up: the file's ``writers`` tell of that."""

    @property
    def waits_for_file(self) -> bool:
        """Whether it is the file that does not answer, not the socket."""

    @property
    def whole(self) -> bool:
        """Whether all of it was received, and it is only to be written."""


class MemoryBody:
    """Received straight into the target, which is no file."""

    waits_for_file = False
    whole = False

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
    """Received into memory that stays in the processor's cache, and written from there to a file that is memory too.

    Against receiving into the mapping: a copy more, of bytes that are hot, and no fault and no clearing of fresh pages.
    Measured on tmpfs, 100 KB: 37 against 73 us. The pages stay unmapped, and their checksum is taken from that memory.
    Only for files in memory: this is done on the event loop.

    Args:
        place: where in the file the body goes.
        size_bytes: of the body.
        progress: follows it.
        memory: what it passes through; anybody's again after each ``received``.
    """

    waits_for_file = False
    whole = False

    def __init__(self, place: FilePlace, size_bytes: int, progress: ReadProgress, memory: memoryview) -> None:
        assert place.in_memory, "the event loop waits for no disk"
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
        at = self._place.at + self._progress.filled_bytes
        try:
            write_at(self._place.fd, data, at)
        except OSError as error:
            raise unwritten(error) from error
        if self._place.landed is not None:
            self._place.landed(at, data, begins=not self._progress.filled_bytes)
        _count(self._progress, len(data))

    def stop(self) -> None:
        """Nothing to stop: it writes only while it is told of bytes."""


class MovedBody:
    """Moved from the transport's socket to the target's file by a thread; the transport is paused meanwhile.

    ``ended(error)`` is called on the loop: None: all is in the file, and the transport reads again. It is not called
    after ``stop``.
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
        """Hand the body to the thread, and ``first``, what has come of it.

        Raises:
            OSError: there is no descriptor for that, or no thread; the transport goes on as it was.
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
        """Raise: the transport does not read."""
        raise AssertionError("a paused transport reads")

    def received(self, size_bytes: int) -> None:
        """Raise: the transport does not read."""
        raise AssertionError(f"a paused transport read {size_bytes} bytes")

    def stop(self) -> None:
        """End it here."""
        if self._move is not None:
            self._move.stop()
            self._transfer_thread.look()

    @property
    def waits_for_file(self) -> bool:
        """Whether a write is under way."""
        return self._move is not None and self._move.writing

    whole = False

    def _over(self, move: BodyTransfer) -> None:
        """Called in the mover's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
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
                self._transport.resume_reading()  # only now: what comes next is no part of the body


class Files:
    """Chooses each body's way: made once per pool.

    Args:
        movers: threads for bodies that go to files; None: all are received where they belong.
    """

    def __init__(self, transfer_threads: TransferThreads | None) -> None:
        self._transfer_threads = transfer_threads
        self._memory = memoryview(bytearray(0 if transfer_threads is None else BUFFER_BYTES))
        self._surplus = memoryview(bytearray(1024))
        self._spares: list[memoryview] = []

    def at_once(self, target: memoryview) -> memoryview | None:
        """Return where a small body that goes to a file is received together with its head, as both mostly are here.

        Anybody's again as soon as what was received is looked at. Against the head by itself: one ``recv`` and one
        ``pwrite`` instead of three and two. None: the body goes another way.
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
        """Begin with a body, of which ``first`` has come already.

        Raises:
            CacheUnavailable: the target's file cannot be written, or there is no thread for that.
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
        except OSError as error:  # no descriptor or thread is left: memory needs none
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
