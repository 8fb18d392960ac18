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


class Move(ABC):
    """One body on its way from a socket into a file.

    Attributes:
        stopped: whoever wanted it does not any more.
        file_error: the file could not be written.
        socket_error: the socket broke; ``ConnectionResetError`` too where it ended early.
        sock_fd: descriptor of the socket, our own.
        file: descriptor of the file that was given; ours is another.
    """

    def __init__(
        self,
        sock_fd: int,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[Move], object],
    ) -> None:
        self.file, self._at, self._landed = place
        self._sock = socket.socket(fileno=os.dup(sock_fd))
        try:
            self._file_fd = os.dup(self.file)
        except OSError:
            self._sock.close()
            raise
        self.sock_fd = self._sock.fileno()
        self._left_bytes = size_bytes
        self._progress = progress
        self._ended = ended
        self._busy = threading.Lock()
        self._low_water_bytes = 1
        self.stopped = False
        self.file_error: OSError | None = None
        self.socket_error: OSError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._left_bytes} bytes left)"

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.stopped or not self._left_bytes or bool(self.file_error or self.socket_error)

    def stop(self) -> None:
        """Write nothing from here on; waits for a write under way, of at most a pipe's content."""
        with self._busy:
            self.stopped = True

    def prepare(self, gear: Gear) -> None:
        """Move what was received before, and have the socket count as readable only when it is worth it."""
        with self._busy:
            if not self.over:
                self._begin(gear)
                self._set_low_water()

    def step(self, gear: Gear) -> None:
        """Move what there is, at most a pipe's content."""
        with self._busy:
            if not self.over:
                self._advance(gear)
                self._set_low_water()

    def finish(self) -> None:
        """Let go of both descriptors and tell."""
        with contextlib.suppress(OSError):
            self._ask_for(1)  # the next head is short
        self._sock.close()
        os.close(self._file_fd)
        self._ended(self)

    @abstractmethod
    def _begin(self, gear: Gear) -> None:
        """Move what is here already."""

    @abstractmethod
    def _advance(self, gear: Gear) -> None:
        """Move what the socket has."""

    @abstractmethod
    def _owed_bytes(self) -> int:
        """Return how much the socket will bring at least."""

    def _arrived(self, size_bytes: int) -> None:
        """Count what is in the file."""
        self._at += size_bytes
        self._left_bytes -= size_bytes
        self._progress.filled_bytes += size_bytes

    def _first_byte(self) -> None:
        if self._progress.first_byte_s is None:
            self._progress.first_byte_s = time.monotonic()

    def _set_low_water(self) -> None:
        if not self.over:
            self._ask_for(max(1, min(_LOW_WATER_BYTES, self._owed_bytes())))

    def _ask_for(self, size_bytes: int) -> None:
        if size_bytes != self._low_water_bytes:
            self._low_water_bytes = size_bytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class SplicedMove(Move):
    """A body as it is on the wire."""

    def _begin(self, gear: Gear) -> None:
        """There is nothing yet."""

    def _owed_bytes(self) -> int:
        return self._left_bytes

    def _advance(self, gear: Gear) -> None:
        count = self._from_socket(gear)
        if count:
            self._first_byte()
        while count:
            try:
                written = os.splice(gear.out, self._file_fd, count, offset_dst=self._at, flags=_MOVE)
                count -= written
                self._tell(gear.buffer, written)
            except OSError as error:
                self.file_error = error
                gear.renew_pipe()  # what is still in it belongs to nobody
                return
            self._arrived(written)

    def _tell(self, buffer: memoryview, size_bytes: int) -> None:
        """Read back what was written, which is in the processor's cache still, for whoever wants to know."""
        if self._landed is None:
            return
        done = 0
        while done < size_bytes:
            count = os.preadv(self._file_fd, [buffer[: size_bytes - done]], self._at + done)
            if not count:
                raise OSError(errno.EIO, "file ends before what was written")
            self._landed(self._at + done, buffer[:count], begins=not (self._progress.filled_bytes or done))
            done += count

    def _from_socket(self, gear: Gear) -> int:
        wanted = min(_PIPE_BYTES, self._left_bytes)
        try:
            count = os.splice(self.sock_fd, gear.into, wanted, flags=_MOVE | _NONBLOCK)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.socket_error = error
            return 0
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
        return count


class DecryptedMove(Move):
    """A body under TLS. Nobody else uses ``cipher`` until it is over."""

    def __init__(
        self,
        cipher: Cipher,
        sock_fd: int,
        place: FilePlace,
        size_bytes: int,
        progress: ReadProgress,
        ended: Callable[[Move], object],
    ) -> None:
        super().__init__(sock_fd, place, size_bytes, progress, ended)
        self._tls, self._incoming = cipher

    def _begin(self, gear: Gear) -> None:
        self._decrypt(gear)

    def _owed_bytes(self) -> int:
        return self._left_bytes - self._incoming.pending - _RECORD_BYTES

    def _advance(self, gear: Gear) -> None:
        try:
            count = self._sock.recv_into(gear.received)
        except BlockingIOError:
            return
        except OSError as error:
            self.socket_error = error
            return
        if not count:
            self.socket_error = ConnectionResetError("closed by the other side")
            return
        self._incoming.write(gear.received[:count])
        self._decrypt(gear)

    def _decrypt(self, gear: Gear) -> None:
        """Write all that can be decrypted."""
        ready = True
        while ready and not self.over:
            filled, limit = 0, min(gear.buffer.nbytes, self._left_bytes)
            try:
                while filled < limit:
                    count = self._tls.read(limit - filled, gear.buffer[filled:limit])
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
                self._write(gear.buffer[:filled])

    def _write(self, data: memoryview) -> None:
        try:
            write_at(self._file_fd, data, self._at)
        except OSError as error:
            self.file_error = error
            return
        if self._landed is not None:
            self._landed(self._at, data, begins=not self._progress.filled_bytes)
        self._arrived(data.nbytes)


class Gear:
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
        self._open()

    def _open(self) -> None:
        self.out, self.into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's pipes may be at their limit: smaller works too
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.out)
        os.close(self.into)

    def renew_pipe(self) -> None:
        """Throw its content away."""
        self.close()
        self._open()
