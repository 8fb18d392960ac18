"""Which daemons wait for each other now, so that none waits in a circle. Pure."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.values import ObjectRef


class PeerTraffic:
    """The entries that peers wait for here, and those that this daemon waits for at a peer.

    While a peer waits for an entry, this daemon does not wait for a peer that fetches it. It reads the entry from a
    peer that has it, or from the store. While this daemon waits itself, it promises the entry to no peer.
    """

    def __init__(self) -> None:
        self._for_peers: Counter[ObjectRef] = Counter()
        self._waits: Counter[ObjectRef] = Counter()

    @contextmanager
    def bringing(self, ref: ObjectRef) -> Iterator[None]:
        """Note that a peer waits for an entry, during the body."""
        with _counted(self._for_peers, ref):
            yield

    @contextmanager
    def waiting(self, ref: ObjectRef) -> Iterator[None]:
        """Note that this daemon waits for a peer that fetches an entry, during the body."""
        with _counted(self._waits, ref):
            yield

    def may_wait(self, ref: ObjectRef) -> bool:
        """Whether this daemon may wait for a peer that fetches an entry."""
        return ref not in self._for_peers

    def may_promise(self, ref: ObjectRef) -> bool:
        """Whether an entry may be promised to a peer."""
        return ref not in self._waits


@contextmanager
def _counted(counter: Counter[ObjectRef], ref: ObjectRef) -> Iterator[None]:
    counter[ref] += 1
    try:
        yield
    finally:
        counter[ref] -= 1
        if not counter[ref]:
            del counter[ref]
