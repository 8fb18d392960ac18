"""Which entries move between daemons now, so that two daemons never wait for each other. Pure."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.values import ObjectRef


class PeerTraffic:
    """The entries that this daemon brings for peers, and those that it reads from peers.

    What a peer wants is fetched from the store only: a request is never passed on to a third daemon. What this daemon
    reads from a peer is promised to no other peer until it is in the cache.
    """

    def __init__(self) -> None:
        self._for_peers: Counter[ObjectRef] = Counter()
        self._from_peers: Counter[ObjectRef] = Counter()

    @contextmanager
    def bringing(self, ref: ObjectRef) -> Iterator[None]:
        """Note that a peer waits for an entry, during the body."""
        with _counted(self._for_peers, ref):
            yield

    @contextmanager
    def reading(self, ref: ObjectRef) -> Iterator[None]:
        """Note that an entry is read from a peer, during the body."""
        with _counted(self._from_peers, ref):
            yield

    def may_read(self, ref: ObjectRef) -> bool:
        """Whether an entry may be read from a peer."""
        return ref not in self._for_peers

    def may_promise(self, ref: ObjectRef) -> bool:
        """Whether an entry may be promised to a peer."""
        return ref not in self._from_peers


@contextmanager
def _counted(counter: Counter[ObjectRef], ref: ObjectRef) -> Iterator[None]:
    counter[ref] += 1
    try:
        yield
    finally:
        counter[ref] -= 1
        if not counter[ref]:
            del counter[ref]
