"""Which address of an endpoint to connect to next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Addresses:
    """The addresses a name resolved to; connections are spread over them in turn, failed ones come last."""

    def __init__(self) -> None:
        self._known: list[str] = []
        self._failed: set[str] = set()
        self._turn = 0

    def __repr__(self) -> str:
        return f"Addresses({len(self._known)} known, {len(self._failed)} failed)"

    def learn(self, found: Iterable[str]) -> None:
        """Take a new resolution; what is not in it is forgotten."""
        self._known = list(dict.fromkeys(found))
        self._failed &= set(self._known)

    def order(self) -> list[str]:
        """Return all addresses, the one to try first in front; each call begins one further."""
        if not self._known:
            return []
        at = self._turn % len(self._known)
        self._turn += 1
        return sorted(self._known[at:] + self._known[:at], key=self._failed.__contains__)

    def failed(self, address: str) -> None:
        """Note that nobody answered there."""
        self._failed.add(address)

    def worked(self, address: str) -> None:
        """Note that somebody answered there."""
        self._failed.discard(address)
