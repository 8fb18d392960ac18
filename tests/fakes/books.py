"""A shard cache without files: the real index, eviction and prefetching, and fills that end at once. Synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from feedd.cache.index import CacheIndex, Reservation
from feedd.cache.prefetch import Prefetcher, PrefetchLimits
from feedd.cache.report import CacheMetrics
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.cache.fills import Fills
    from feedd.cache.index import Entry, Quotas
    from feedd.protocols import ShardCache
    from feedd.values import NextUses, ObjectRef


class _InstantFills:
    """What the prefetcher knows of fills: they are collected, and end when asked to."""

    def __init__(self) -> None:
        self.begun: list[Entry] = []

    def join(self, entry: Entry) -> Entry:
        self.begun.append(entry)
        return entry

    def leave(self, entry: Entry) -> None:
        """Nothing to give back."""

    def evict(self, entries: Iterable[Entry]) -> None:
        """No file to remove."""


class BooksCache:
    """Decides as a real cache does, with prefetching always as far ahead as it may go: the worst case for eviction.

    Attributes:
        fetched_bytes: object bytes brought in so far.
    """

    def __init__(self, size_bytes: int, prefetch_fills: int = 4, quotas: Quotas | None = None) -> None:
        self.index = CacheIndex(size_bytes, quotas)
        self.fetched_bytes = 0
        self._fills = _InstantFills()
        fills = cast("Fills", self._fills)  # the part of it that the prefetcher calls
        self._prefetcher = Prefetcher(self.index, fills, CacheMetrics(TallyRecorder()), PrefetchLimits(prefetch_fills))

    @property
    def seam(self) -> ShardCache:
        """Itself, for those who only prefetch and tell of the future."""
        return cast("ShardCache", self)

    def use(self, refs: Sequence[ObjectRef]) -> None:
        """Acquire and release."""
        outcome = self.index.reserve_all(refs)
        assert isinstance(outcome, Reservation), outcome
        for entry in outcome.missing:
            self._arrive(entry)
        self._pump()  # what comes while the batch is being made
        for entry in outcome.entries:
            self.index.unpin(entry)
        self._pump()

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        self._prefetcher.wish(owner, refs)
        if not refs:
            self._prefetcher.give_up(owner)
        self._pump()

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        self.index.note_next_use(times, refs)
        self._pump()

    def _pump(self) -> None:
        self._prefetcher.pump()
        while self._fills.begun:
            entry = self._fills.begun.pop(0)
            self._arrive(entry)
            self._prefetcher.ended(entry, None)
            self._prefetcher.pump()

    def _arrive(self, entry: Entry) -> None:
        self.fetched_bytes += entry.ref.size_bytes
        assert self.index.commit(entry)
