"""Wishes for shards that are still to be made: made in the background, a few at a time, then wished for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.cache.tiers import AnyCache
    from feedd.converting.converter import Converter
    from feedd.flow.singleflight import Flight, SingleFlight
    from feedd.values import ObjectRef

_AHEAD_MAX: Final = 2
_FRESH_MAX: Final = 4  # made and being made: the cache below takes no more than it has room for


class ConversionWishes:
    """What owners wish for, as they said it, and the makings started for that.

    Args:
        inner: the cache that is told of shards whose size is known.
        maker: makes the others.
        flights: of makings, shared with those who acquire.
        bring: makes one.
    """

    def __init__(
        self,
        inner: AnyCache,
        converter: Converter,
        flights: SingleFlight[ObjectRef, ObjectRef],
        bring: Callable[[ObjectRef], Awaitable[ObjectRef]],
    ) -> None:
        self._inner = inner
        self._converter = converter
        self._flights = flights
        self._bring = bring
        self._lists: dict[str, tuple[ObjectRef, ...]] = {}
        self._told: dict[str, list[ObjectRef]] = {}
        self._running: dict[ObjectRef, Flight[ObjectRef, ObjectRef]] = {}
        self._failed: set[ObjectRef] = set()
        self._closed = False

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace ``owner``'s list; an empty one ends makings that nobody else wants."""
        if refs:
            self._lists[owner] = tuple(dict.fromkeys(refs))
            self._failed.difference_update(refs)
        else:
            self._lists.pop(owner, None)
        self._tell(owner)
        wanted = {ref for wishes in self._lists.values() for ref in wishes}
        for ref in [ref for ref in self._running if ref not in wanted]:
            self._flights.leave(self._running.pop(ref))
        self.pump()

    def shards(self) -> set[ObjectRef | None]:
        """Return the shards wished for, as far as they are known."""
        return {self._converter.facts.made(ref) for wishes in self._lists.values() for ref in wishes if ref.form}

    def ended(self, ref: ObjectRef, error: BaseException | None) -> None:
        """Take note that a making ended; a failure is dropped: who acquires the shard will meet it."""
        flight = self._running.pop(ref, None)
        if flight is not None:
            self._flights.leave(flight)
        if self._closed:
            return
        if error is not None:
            if flight is not None:
                self._failed.add(ref)
        else:
            for owner in [owner for owner, wishes in self._lists.items() if ref in wishes]:
                self._tell(owner)
        self.pump()

    def pump(self) -> None:
        """Start what can be started now."""
        while not self._closed and len(self._running) < _AHEAD_MAX:
            if self._converter.fresh_count + len(self._running) >= _FRESH_MAX:
                return
            ref = self._next()
            if ref is None:
                return
            self._running[ref] = self._flights.join(ref, partial(self._bring, ref))

    def close(self) -> None:
        """Forget everything; the makings are the caller's to cancel."""
        self._closed = True
        self._lists.clear()

    def _next(self) -> ObjectRef | None:
        """Return the first wish still to be made, of the owner whose comes first."""
        best: tuple[int, ObjectRef] | None = None
        for wishes in self._lists.values():
            for place, ref in enumerate(wishes):
                if best is not None and place >= best[0]:
                    break
                if self._is_due(ref):
                    best = (place, ref)
                    break
        return None if best is None else best[1]

    def _is_due(self, ref: ObjectRef) -> bool:
        if not ref.form or ref in self._running or ref in self._failed:
            return False
        return self._converter.facts.known(ref) is None

    def _tell(self, owner: str) -> None:
        """Wish below for what is known, in order; where nothing is yet, cancel nothing that was wished for before."""
        wishes = self._lists.get(owner, ())
        known = [shard for ref in wishes if (shard := self._converter.facts.made(ref) if ref.form else ref) is not None]
        if wishes and not known:
            known = [shard for shard in self._told.get(owner, []) if self._inner.knows(shard)][:1]
        if wishes:
            self._told[owner] = known
        else:
            self._told.pop(owner, None)
        self._inner.prefetch(known, owner)
