"""The Unix socket that hands out arenas, and whose connections are lifelines.

A client sends 21 bytes, a word of 5 and 16 more, and gets one byte back: 0x01, or 0x00 if it is refused.

- ``ARENA`` and a session's token: the arena's memfd comes along (SCM_RIGHTS).
- ``HOLD!`` and zeros: keeps an ephemeral daemon alive. Other daemons refuse it.
- ``OWNER`` and zeros: a ticket of 32 bytes follows, see ``tickets``.

Other connections then stay open and silent. The kernel ends it when the client's process dies, however it dies. The end
of an ARENA connection frees the slots that the process held. The end of the last HOLD connection stops an ephemeral
daemon. The end of an OWNER connection ends its ticket.

A closing session shuts down the daemon's direction only. The arena's memory counts against the limit until the client
ends its direction, because a trainer may hold batches after the close.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import structlog

from feedd.flow.doors import Door
from feedd.serve.tickets import OWNER_GREETING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from feedd.flow.doors import Guest
    from feedd.serve.served_session import Lifeline
    from feedd.serve.server_options import ServeOptions
    from feedd.serve.tickets import Tickets

HELLO_BYTES = 21
ARENA = b"ARENA"
HOLD = b"HOLD!" + bytes(16)
_YES, _NO = b"\x01", b"\x00"

_log = structlog.get_logger(__name__)


class ArenaDirectory(Protocol):
    """Knows the arenas by their tokens."""

    def attached(self, token: bytes, lifeline: Lifeline) -> AbstractContextManager[int | None]:
        """Keep a lifeline until the exit; yield its arena's memfd, or None for an unknown token."""


class _Connection:
    """The connection of one client; a ``Lifeline``."""

    def __init__(self, conn: socket.socket, pid: int) -> None:
        self.conn = conn
        self.pid = pid

    def say_closed(self) -> None:
        """Make the client read the end. The daemon reads on: only the client's end shows that the memory is free."""
        with contextlib.suppress(OSError):
            self.conn.shutdown(socket.SHUT_WR)


def peer_credentials(conn: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


class ArenaSocket:
    """Serves any number of listening sockets, with one limit over all connections."""

    def __init__(
        self,
        directory: ArenaDirectory,
        tickets: Tickets,
        options: ServeOptions,
        on_holders: Callable[[int], None] | None,
    ) -> None:
        """Store the dependencies.

        Args:
            directory: knows the tokens.
            tickets: issues tickets.
            options: who may connect, how many, and how long the hello may take.
            on_holders: called with the number of HOLD connections whenever it changes; None: HOLD is refused.
        """
        self._directory = directory
        self._tickets = tickets
        self._options = options
        self._on_holders = on_holders
        self._allowed_uids = {0, os.geteuid(), *options.allow_uids} if options.allow_uids else None  # None: all
        most = options.arena_connections_max
        self._per_user_max = most if options.one_user else most * 3 // 4  # the rest is for other users
        self._by_uid: Counter[int] = Counter()
        self._connection_count = 0
        self._holder_count = 0

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return self._connection_count

    @property
    def holder_count(self) -> int:
        """Number of open HOLD connections."""
        return self._holder_count

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Accept until cancelled, then close all connections. The caller closes the listeners."""
        most = self._options.arena_connections_max
        with Door("arena", most, strangers_max=max(1, most // 4)) as door:
            async with asyncio.TaskGroup() as group:
                for listener in listeners:
                    group.create_task(self._accept(door, listener, group))

    async def _accept(self, door: Door, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        while True:
            group.create_task(self._connection(await door.accept(listener)))

    async def _connection(self, guest: Guest) -> None:
        conn = guest.sock
        self._connection_count += 1
        try:
            conn.settimeout(0.0)
            pid, uid = peer_credentials(conn)
            with self._counted(uid) as count:
                if self._admits(uid, pid, count):
                    await self._serve(guest, pid, uid)
                else:
                    conn.send(_NO)
        except (OSError, TimeoutError) as error:
            _log.debug("a lifeline broke", error=repr(error))
        except Exception:  # noqa: BLE001 - one connection must not end the task group that all of them are in
            _log.exception("a lifeline ended by an error")
        finally:
            self._connection_count -= 1
            conn.close()

    @contextmanager
    def _counted(self, uid: int) -> Iterator[int]:
        """Count a user's connection during the body; yield how many the user has."""
        self._by_uid[uid] += 1
        try:
            yield self._by_uid[uid]
        finally:
            self._by_uid[uid] -= 1
            if not self._by_uid[uid]:
                del self._by_uid[uid]

    def _admits(self, uid: int, pid: int, count: int) -> bool:
        if self._allowed_uids is not None and uid not in self._allowed_uids:
            _log.warning("a connection was refused because of its user", uid=uid, pid=pid)
            return False
        if count > self._per_user_max:
            _log.warning("too many lifelines of one user: a connection is refused", uid=uid, pid=pid)
            return False
        return True

    async def _serve(self, guest: Guest, pid: int, uid: int) -> None:
        conn = guest.sock
        async with asyncio.timeout(self._options.hello_timeout_s):
            hello = await _read_hello(conn)
        guest.known = guest.busy = True  # lifelines are silent, and last as long as their clients
        if hello == HOLD and self._on_holders is not None:
            await self._hold(conn, self._on_holders)
        elif hello == OWNER_GREETING:
            with self._tickets.issued(uid) as ticket:
                conn.send(_YES + ticket)
                await _read_end(conn)
        elif hello.startswith(ARENA):
            await self._send_arena(_Connection(conn, pid), hello[len(ARENA) :])
        else:
            conn.send(_NO)

    async def _send_arena(self, lifeline: _Connection, token: bytes) -> None:
        with self._directory.attached(token, lifeline) as fd:
            if fd is None:
                lifeline.conn.send(_NO)
                return
            socket.send_fds(lifeline.conn, [_YES], [fd])  # one byte into an empty buffer never blocks
            await _read_end(lifeline.conn)

    async def _hold(self, conn: socket.socket, on_holders: Callable[[int], None]) -> None:
        self._holder_count += 1
        on_holders(self._holder_count)
        try:
            conn.send(_YES)
            await _read_end(conn)
        finally:
            self._holder_count -= 1
            on_holders(self._holder_count)


async def _read_hello(conn: socket.socket) -> bytes:
    """Return 21 bytes, or fewer if the client ended earlier."""
    loop = asyncio.get_running_loop()
    hello = b""
    while len(hello) < HELLO_BYTES:
        part = await loop.sock_recv(conn, HELLO_BYTES - len(hello))
        if not part:
            break
        hello += part
    return hello


async def _read_end(conn: socket.socket) -> None:
    """Wait for the end; any byte after the hello comes from a broken client and counts as the end."""
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_recv(conn, 1)
