"""What a listening port takes in: silent connections shut out nobody else, and leave descriptors for the work."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import structlog

if TYPE_CHECKING:
    from types import TracebackType

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 0.1
"""Pause after accept failed: an immediate retry cannot help."""
_SAY_S: Final = 60.0
"""Shortest time between two warnings of a port."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Most connections of each port. Together they take 3/5 of the descriptors; the rest is for fetches and files.

    Attributes:
        status: of the status page.
        grpc: of all addresses for gRPC together.
        admin: of the admin socket.
        arena: of the arena socket; each lifeline is one.
        peers: of the port for peers.
    """

    status: int
    grpc: int
    admin: int
    arena: int
    peers: int

    @classmethod
    def of_process(cls) -> Self:
        """Return the limits for this process's limit of open files."""
        return cls.of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    @classmethod
    def of(cls, open_files_max: int) -> Self:
        """Return the limits for a limit of open files; a negative number is no limit."""
        files = open_files_max if 0 <= open_files_max < 1 << 20 else 1 << 20
        shares = (128, files // 20), (files, files // 6), (64, files // 40), (4096, files // 4), (1024, files // 10)
        return cls(*(max(4, min(most, share)) for most, share in shares))


class Guest:
    """A connection that a door has let in.

    Attributes:
        sock: the connection.
        source: who connects: an address, or a user.
        known: the other end has shown who it is.
        busy: a request is being answered.
    """

    def __init__(self, sock: socket.socket, source: object) -> None:
        self.sock = sock
        self.source = source
        self.known = False
        self.busy = False

    @property
    def gone(self) -> bool:
        """Whether the socket is closed."""
        return self.sock.fileno() < 0

    def drop(self) -> None:
        """End the connection in both directions: whoever serves it reads the end, and closes it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class Door:
    """Accepts the connections of one port; a context manager, used by one event loop.

    A full door drops the connection that has been silent longest in favour of a new one. Connections that have not
    shown who they are take a part of the places only, and those of one source a part of that.

    Args:
        name: the port, for the log.
        limit: most connections.
        strangers_max: most connections that are not known; 0: half of ``limit``.
    """

    def __init__(self, name: str, limit: int, strangers_max: int = 0) -> None:
        self._name = name
        self._limit = limit
        self._strangers_max = strangers_max or max(1, limit // 2)
        self._per_source_max = max(1, self._strangers_max * 3 // 4)
        self._guests: dict[int, Guest] = {}  # by descriptor, the oldest first
        self._spare = -1
        self._said_s = -_SAY_S

    def __enter__(self) -> Self:
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def guest(self, descriptor: int) -> Guest | None:
        """Return the guest with this descriptor."""
        return self._guests.get(descriptor)

    async def accept(self, listener: socket.socket) -> Guest:
        """Return the next connection, non-blocking, which has a place."""
        loop = asyncio.get_running_loop()
        while True:
            # One connection a turn: between two, the loop reads others and closes those that were dropped.
            await asyncio.sleep(0)
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._turn_away(listener, error)
                    await asyncio.sleep(_PAUSE_S)
                else:
                    _log.debug("a connection ended before it was accepted", port=self._name, error=str(error))
                continue
            sock.setblocking(False)  # noqa: FBT003 - the standard library's
            if (guest := self.admit(sock, _source(sock, address))) is not None:
                return guest
            sock.close()

    def admit(self, sock: socket.socket, source: object) -> Guest | None:
        """Return a new connection as a guest; None: it has no place, and nobody can be dropped for it."""
        self._guests = {key: guest for key, guest in self._guests.items() if not guest.gone}
        strangers = [guest for guest in self._guests.values() if not guest.known]
        same = [guest for guest in strangers if guest.source == source]
        if len(same) >= self._per_source_max:
            place = self._vacate(same)
        elif len(strangers) >= self._strangers_max:
            place = self._vacate(strangers)
        elif len(self._guests) >= self._limit:
            place = self._vacate([*strangers, *(guest for guest in self._guests.values() if guest.known)])
        else:
            place = True
        if not place:
            return None
        guest = Guest(sock, source)
        self._guests.pop(sock.fileno(), None)
        self._guests[sock.fileno()] = guest
        return guest

    def _vacate(self, candidates: list[Guest]) -> bool:
        """Drop the first guest that is not busy; return whether there was one."""
        self._say("a port has all the connections that it takes, so silent ones are dropped", limit=self._limit)
        for guest in candidates:
            if not guest.busy:
                guest.drop()
                self._guests = {key: one for key, one in self._guests.items() if one is not guest}
                return True
        return False

    def _turn_away(self, listener: socket.socket, error: OSError) -> None:
        """Drop a silent guest, so that a descriptor becomes free. If there is none, refuse the waiting connection."""
        self._say("a connection could not be accepted", error=str(error))
        if self._vacate([guest for guest in self._guests.values() if not guest.known and not guest.gone]):
            return
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _say(self, what: str, **more: object) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s >= _SAY_S:
            self._said_s = now_s
            _log.warning(what, port=self._name, **more)


def _source(sock: socket.socket, address: object) -> object:
    """Return the user at the other end of a Unix socket, or the address at the other end of another socket."""
    if sock.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], "little")
        return None
    return address[0] if isinstance(address, tuple) else address
