"""Kept connections that nobody uses at the moment."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.fetch.s3.connection import Connection


class Idle:
    """Connections by their address: there are many of them, and few addresses. Of each the last used goes first."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Connection]] = {}  # the address that was given one last is the last one

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(list(self._kept.values()))

    @property
    def addresses(self) -> list[str]:
        """Where they lead, in front the address that was given one last."""
        return list(reversed(self._kept))

    def add(self, connection: Connection) -> None:
        """Keep one."""
        kept = self._kept.pop(connection.address, [])
        kept.append(connection)
        self._kept[connection.address] = kept

    def take(self, address: str) -> Connection:
        """Return one that leads there, which is then the caller's."""
        kept = self._kept[address]
        taken = kept.pop()
        if not kept:
            del self._kept[address]
        return taken

    def take_all(self, address: str) -> list[Connection]:
        """Return all that lead there, which are then the caller's."""
        return self._kept.pop(address)

    def discard(self, connection: Connection) -> None:
        """Forget one that is lost; it may have been taken."""
        kept = self._kept.get(connection.address, [])
        if connection in kept:
            kept.remove(connection)
            if not kept:
                del self._kept[connection.address]
