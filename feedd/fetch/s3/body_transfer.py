"""Bodies on their way from a socket into a file, without passing through the event loop.

Plain ones by ``splice``, which hands the socket's pages to a pipe and has them copied from there into the file's pages.
Compared with receiving into a mapping it saves a fault and the clearing of every fresh page; measured on tmpfs (Linux
6.18), file allocation included: 0.51 to 0.60 against 0.84 CPU-seconds per GB, and 0.27 against 0.54 where the file's
pages were there already. Those with TLS are decrypted into a buffer that stays in the processor's cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from feedd.flow.mapping import write_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.mapping import FilePlace
    from feedd.values import ReadProgress

_PIPE_BYTES = 1 << 20  # the most an unprivileged process gets; smaller ones cost more: measured, 256 KiB a third more
_LOW_WATER_BYTES = 256 << 10  # woken for that much: fewer turns, and progress is still seen several times per part
_BUFFER_BYTES = 256 << 10  # stays in the processor's cache
_RECORD_BYTES = 17 << 10  # a TLS record and what surrounds it; OpenSSL may hold one half read
_MOVE = 1  # SPLICE_F_MOVE
_NONBLOCK = 2  # SPLICE_F_NONBLOCK


class Cipher(NamedTuple):
    """One connection's TLS, fed by hand; used by one thread at a time.

    Attributes:
        tls: what decrypts.
        incoming: where it looks for what was received.
    """

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO


class BodyTransfer(ABC):
    """One body on its way from a socket into a file, a step at a time in one thread.

    No lock is held while anything is read or written: a disk may hold up a step for as long as it likes, and whoever
    stops the move meanwhile does not wait. The file's ``writers`` tell when this one has let go of it.

    Attributes:
        stopped: whoever wanted it does not any more.
        writing: a step waits for the file.
        file_error: the file could not be written.
        socket_error: the socket broke; ``ConnectionResetError`` too where it ended early.
        sock_fd: descriptor of the socket, our own.
        file: descriptor of the file; open until the file's writers have ended.
        first: what was received before, to be written before anything else.
    """

    def __init__(
        self,
        sock_fd: int,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[BodyTransfer], object],
    ) -> None:
        self.file, self._at, self._landed, self._writers, _ = place
        self._sock = socket.socket(fileno=os.dup(sock_fd))
        self.sock_fd = self._sock.fileno()
        self._left_bytes = size_bytes
        self._progress = progress
        self._ended = ended
        self._counting = threading.Lock()  # held for a few additions, never during a system call that may wait
        self._low_water_bytes = 1
        self.stopped = self.writing = False
        self.first = b""
        self.file_error: OSError | None = None
        self.socket_error: OSError | None = None
        self._writers.begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._left_bytes} bytes left)"

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.stopped or not self._left_bytes or bool(self.file_error or self.socket_error)

    def stop(self) -> None:
        """Count no byte from here on, and begin no other write. Does not wait for one that is under way."""
        with self._counting:
            if not self.over:
                with contextlib.suppress(OSError):  # the sender need not wait for the disk to hear of it
                    self._sock.shutdown(socket.SHUT_RDWR)
            self.stopped = True

    def prepare(self, buffers: TransferBuffers) -> None:
        """Move what was received before, and have the socket count as readable only when it is worth it."""
        if self.first and not self.over:
            self._first_byte()
            self._write(memoryview(self.first))
        if not self.over:
            self._begin(buffers)
            self._set_low_water()

    def step(self, buffers: TransferBuffers) -> None:
        """Move what there is, at most a pipe's content."""
        if not self.over:
            self._advance(buffers)
            self._set_low_water()

    def fail(self, error: Exception) -> None:
        """End it with what nobody expected."""
        if isinstance(error, OSError):
            self.socket_error = error
        else:
            self.socket_error = ConnectionResetError(f"a transfer ended with {type(error).__name__}: {error}")

    def finish(self) -> None:
        """Let go of socket and file, and tell."""
        with contextlib.suppress(OSError):
            self._ask_for(1)  # the next head is short
        with self._counting:
            self._sock.close()
        self._writers.end()
        self._ended(self)

    @abstractmethod
    def _begin(self, buffers: TransferBuffers) -> None:
        """Move what is here already."""

    @abstractmethod
    def _advance(self, buffers: TransferBuffers) -> None:
        """Move what the socket has."""

    @abstractmethod
    def _owed_bytes(self) -> int:
        """Return how much the socket will bring at least."""

    def _arrived(self, data: memoryview | None, size_bytes: int) -> bool:
        """Count what is in the file, and tell who wants to know; False: nobody does any more.

        Args:
            data: those bytes; None where nobody is to be told.
            size_bytes: how many.
        """
        if self._landed is not None and data is not None and not self.stopped:
            self._landed(self._at, data, begins=not self._progress.filled_bytes)
        with self._counting:
            if self.stopped:
                return False
            self._at += size_bytes
            self._left_bytes -= size_bytes
            self._progress.filled_bytes += size_bytes
        return True

    def _write(self, data: memoryview) -> None:
        self.writing = True
        try:
            write_at(self.file, data, self._at)
        except OSError as error:
            self.file_error = error
            return
        finally:
            self.writing = False
        self._arrived(data, data.nbytes)

    def _first_byte(self) -> None:
        if self._progress.first_byte_s is None and not self.stopped:
            self._progress.first_byte_s = time.monotonic()

    def _set_low_water(self) -> None:
        if not self.over:
            self._ask_for(max(1, min(_LOW_WATER_BYTES, self._owed_bytes())))

    def _ask_for(self, size_bytes: int) -> None:
        if size_bytes != self._low_water_bytes:
            self._low_water_bytes = size_bytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class SplicedMove(BodyTransfer):
    """A body as it is on the wire."""

    def _begin(self, buffers: TransferBuffers) -> None:
        """There is nothing yet."""

    def _owed_bytes(self) -> int:
        return self._left_bytes

    def _advance(self, buffers: TransferBuffers) -> None:
        count = self._from_socket(buffers)
        if count:
            self._first_byte()
        while count:
            try:
                self.writing = True
                written = os.splice(buffers.out, self.file, count, offset_dst=self._at, flags=_MOVE)
                told = self._written(buffers.buffer, written)
            except OSError as error:
                self.file_error = error
                told = False
            finally:
                self.writing = False
            if not told:
                buffers.drain()  # what is still in it belongs to nobody
                return
            count -= written

    def _written(self, buffer: memoryview, size_bytes: int) -> bool:
        """Count what was written; read back, from the processor's cache still, where somebody wants to know of it."""
        if self._landed is None:
            return self._arrived(None, size_bytes)
        while size_bytes:
            count = os.preadv(self.file, [buffer[:size_bytes]], self._at)
            if not count:
                raise OSError(errno.EIO, "file ends before what was written")
            if not self._arrived(buffer[:count], count):
                return False
            size_bytes -= count
        return True

    def _from_socket(self, buffers: TransferBuffers) -> int:
        wanted = min(_PIPE_BYTES, self._left_bytes)
        try:
            count = os.splice(self.sock_fd, buffers.into, wanted, flags=_MOVE | _NONBLOCK)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.socket_error = error
            return 0
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
        return count


class DecryptedMove(BodyTransfer):
    """A body under TLS. Nobody else uses ``cipher`` until it is over."""

    def __init__(
        self,
        cipher: Cipher,
        sock_fd: int,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[BodyTransfer], object],
    ) -> None:
        super().__init__(sock_fd, place, size_bytes, progress, ended)
        self._tls, self._incoming = cipher

    def _begin(self, buffers: TransferBuffers) -> None:
        self._decrypt(buffers)

    def _owed_bytes(self) -> int:
        return self._left_bytes - self._incoming.pending - _RECORD_BYTES

    def _advance(self, buffers: TransferBuffers) -> None:
        try:
            count = self._sock.recv_into(buffers.received)
        except BlockingIOError:
            return
        except OSError as error:
            self.socket_error = error
            return
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
            return
        self._incoming.write(buffers.received[:count])
        self._decrypt(buffers)

    def _decrypt(self, buffers: TransferBuffers) -> None:
        """Write all that can be decrypted."""
        ready = True
        while ready and not self.over:
            filled, limit = 0, min(buffers.buffer.nbytes, self._left_bytes)
            try:
                while filled < limit:
                    count = self._tls.read(limit - filled, buffers.buffer[filled:limit])
                    if not count:
                        self.socket_error = ConnectionResetError("closed by the other side")
                        ready = False
                        break
                    filled += int(count)
            except ssl.SSLWantReadError:
                ready = False
            except ssl.SSLError as error:
                self.socket_error = error
                ready = False
            if filled:
                self._first_byte()
                self._write(buffers.buffer[:filled])


class TransferBuffers:
    """What bodies pass through; empty between steps.

    Attributes:
        buffer: for what goes to the file, or came to it.
        received: for what comes from the socket and is not decrypted yet.
        out: the pipe's end to read from.
        into: its other end.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.received = memoryview(bytearray(_BUFFER_BYTES))
        self.out, self.into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's pipes may be at their limit: smaller works too
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.out)
        os.close(self.into)

    def drain(self) -> None:
        """Throw away what is in the pipe; takes no descriptor, as another pipe would."""
        with contextlib.suppress(BlockingIOError):
            while os.readv(self.out, [self.buffer]):
                pass
