"""Connections that are kept for later requests."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.fetch.s3.connection import Connection


class Idle:
    """Idle connections by address: there are many connections and few addresses. The last used of each goes first."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}  # the address that got the last connection comes last

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(list(self._idle.values()))

    @property
    def addresses(self) -> list[str]:
        """The addresses, starting with the one that got the last connection."""
        return list(reversed(self._idle))

    def add(self, connection: Connection) -> None:
        """Keep an idle connection."""
        kept = self._idle.pop(connection.address, [])
        kept.append(connection)
        self._idle[connection.address] = kept

    def take(self, address: str) -> Connection:
        """Remove and return a connection to an address."""
        kept = self._idle[address]
        taken = kept.pop()
        if not kept:
            del self._idle[address]
        return taken

    def take_all(self, address: str) -> list[Connection]:
        """Remove and return all connections to an address."""
        return self._idle.pop(address)

    def discard(self, connection: Connection) -> None:
        """Forget a lost connection; it may have been taken already."""
        kept = self._idle.get(connection.address, [])
        if connection in kept:
            kept.remove(connection)
            if not kept:
                del self._idle[connection.address]
