"""Fills in advance of any acquirer, in the order of the owners' wish lists."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.cache.index import EntryState, Reservation, TooLarge
from feedd.errors import Draining

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.cache.fills import Fills
    from feedd.cache.index import CacheIndex, Entry
    from feedd.cache.report import CacheMetrics
    from feedd.flow.singleflight import Flight
    from feedd.values import ObjectRef

_FEW: Final = 4
"""Early fills that may run whatever their size: while one ends, the next ones begin."""


class WishLists:
    """Each owner's unserved wishes, in order; owners are served in turn."""

    def __init__(self) -> None:
        self._lists: dict[str, deque[ObjectRef]] = {}

    def __bool__(self) -> bool:
        """Whether any wish is unserved."""
        return bool(self._lists)

    def replace(self, owner: str, refs: Iterable[ObjectRef]) -> None:
        """Make ``refs`` the owner's whole list."""
        wanted = deque(dict.fromkeys(refs))
        if wanted:
            self._lists[owner] = wanted
        else:
            self._lists.pop(owner, None)

    def owners(self) -> tuple[str, ...]:
        """Owners with unserved wishes, the least recently served first."""
        return tuple(self._lists)

    def head(self, owner: str) -> ObjectRef | None:
        """Return the owner's next wish, or None if none is left."""
        wishes = self._lists.get(owner)
        return wishes[0] if wishes else None

    def drop_head(self, owner: str) -> None:
        """Drop the owner's next wish: it was served, or it is needless or hopeless."""
        wishes = self._lists[owner]
        wishes.popleft()
        if not wishes:
            del self._lists[owner]

    def served(self, owner: str) -> None:
        """Move the owner to the end of the queue of owners."""
        wishes = self._lists.pop(owner, None)
        if wishes:
            self._lists[owner] = wishes

    def wanted(self, ref: ObjectRef) -> bool:
        """Whether any owner has this unserved wish."""
        return any(ref in wishes for wishes in self._lists.values())

    def clear(self) -> None:
        """Forget all wishes."""
        self._lists.clear()


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """Bounds of the fills in advance of any acquirer.

    A shard takes at least one request, and a request at least one round trip. So a store far away needs as many fills
    as there may be requests. Of large shards, a few fills take all requests.

    Attributes:
        fills: most fills at once.
        size_bytes: no other fill begins while those that run have this many bytes together, but up to four may run.
    """

    fills: int = _FEW
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if self.fills < 0 or self.size_bytes < 0:
            raise ValueError(f"expected limits of prefetching of 0 or more, got {self.fills} and {self.size_bytes}")

    def admit(self, fill_count: int, running_bytes: int) -> bool:
        """Whether another fill may begin beside those that run."""
        return fill_count < self.fills and (fill_count < _FEW or running_bytes < self.size_bytes)


@dataclass(slots=True, eq=False)
class _EarlyFill:
    """A running fill for a wish. ``started``: the prefetcher started it, not an acquirer."""

    flight: Flight[Entry, None]
    owners: set[str]
    started: bool


class Prefetcher:
    """Serves wishes in order, a few at a time, and never evicts an entry that is needed sooner.

    A wish is served once. An object found in the cache, or brought there, leaves the list even if it is evicted before
    its use. So prefetching cannot fight with acquirers over a cache that is too small for both.
    """

    def __init__(self, index: CacheIndex, fills: Fills, cache_metrics: CacheMetrics, limits: PrefetchLimits) -> None:
        self._index = index
        self._fills = fills
        self._cache_metrics = cache_metrics
        self._limits = limits
        self._wishes = WishLists()
        self._running: dict[Entry, _EarlyFill] = {}
        self._started_count = self._started_bytes = 0

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace the owner's list; running fills go on."""
        self._wishes.replace(owner, refs)

    def give_up(self, owner: str) -> None:
        """End the running fills that only this owner has wished for."""
        for entry, early in tuple(self._running.items()):
            early.owners.discard(owner)
            if not early.owners and not self._wishes.wanted(entry.ref):
                self._fills.leave(self._forget(entry).flight)

    def pump(self) -> None:
        """Start all fills that can start now."""
        progress = True
        while progress and self._has_room():
            progress = False
            for owner in self._wishes.owners():
                if self._has_room() and self._serve(owner):
                    progress = True

    def ended(self, entry: Entry, error: BaseException | None) -> None:
        """Handle the end of any fill; a failure is only counted, because the acquirer will meet it too."""
        if entry not in self._running:
            return
        early = self._forget(entry)
        self._fills.leave(early.flight)
        if early.started and error is not None and not isinstance(error, Draining):
            self._cache_metrics.error("prefetch")

    def close(self) -> None:
        """Forget all wishes; the caller cancels the fills."""
        self._wishes.clear()

    def _has_room(self) -> bool:
        return self._limits.admit(self._started_count, self._started_bytes)

    def _serve(self, owner: str) -> bool:
        """Start one fill for the owner; False if none of its wishes can be started now."""
        while (ref := self._wishes.head(owner)) is not None:
            entry = self._index.find(ref)
            if entry is None:
                outcome = self._index.reserve_early(ref)
                if isinstance(outcome, Reservation):
                    self._wishes.drop_head(owner)
                    self._wishes.served(owner)
                    self._fills.evict(outcome.evicted)
                    self._adopt(outcome.entries[0], owner, started=True)
                    return True
                if not isinstance(outcome, TooLarge):
                    return False
                self._cache_metrics.error("prefetch")
            elif entry.state is EntryState.RESERVED:
                self._adopt(entry, owner, started=False)
            self._wishes.drop_head(owner)
        return False

    def _adopt(self, entry: Entry, owner: str, *, started: bool) -> None:
        early = self._running.get(entry)
        if early is None:
            self._running[entry] = _EarlyFill(self._fills.join(entry), {owner}, started)
            if started:
                self._started_count += 1
                self._started_bytes += entry.ref.size_bytes
        else:
            early.owners.add(owner)

    def _forget(self, entry: Entry) -> _EarlyFill:
        early = self._running.pop(entry)
        if early.started:
            self._started_count -= 1
            self._started_bytes -= entry.ref.size_bytes
        return early
