"""Tickets: they tell a gRPC call which user of this machine sent it.

gRPC does not tell the user at the other end of a Unix socket. The arena socket does, so it hands out a random ticket
for the user of its connection. A call with the ticket belongs to that user for as long as the connection stays open.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from feedd.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

TICKET_BYTES: Final = 32
TICKET_HEADER: Final = "feedd-ticket-bin"
"""Name of the gRPC header that carries a ticket."""
OWNER_GREETING: Final = b"OWNER" + bytes(16)
"""What a client sends to the arena socket to get a ticket."""


@contextmanager
def ticket_of(arena_path: str, timeout_s: float = 5.0) -> Iterator[bytes | None]:
    """Yield a ticket of this process's user, for commands; None: the daemon issues none, or cannot be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        ticket: bytes | None = None
        with contextlib.suppress(OSError):
            conn.settimeout(timeout_s)
            conn.connect(arena_path)
            conn.sendall(OWNER_GREETING)
            answer = conn.recv(1 + TICKET_BYTES, socket.MSG_WAITALL)
            ticket = answer[1:] if len(answer) == 1 + TICKET_BYTES else None
        yield ticket


class Tickets:
    """The tickets of open connections."""

    def __init__(self) -> None:
        self._owners: dict[bytes, Owner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    @contextmanager
    def issued(self, uid: int) -> Iterator[bytes]:
        """Yield a new ticket of a user; it ends with the body."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._owners[ticket] = Owner.of_uid(uid)
        try:
            yield ticket
        finally:
            del self._owners[ticket]

    def owner(self, ticket: bytes) -> Owner | None:
        """Return the user of a ticket; None: the ticket has ended, or never was."""
        return self._owners.get(ticket)
