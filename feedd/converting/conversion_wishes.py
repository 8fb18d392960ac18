"""Wish lists with shards that are not converted yet: converts a few at a time, then passes the wish on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from feedd.converting.fresh_shards import SMALL_BYTES
from feedd.converting.object_ranges import charge_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.cache.cache import Cache
    from feedd.converting.converter import Converter
    from feedd.flow.singleflight import Flight, SingleFlight
    from feedd.values import ObjectRef

_AHEAD_MAX: Final = 2
_FRESH_MAX: Final = 4  # made and being made: the cache below takes no more than it has room for
_SMALL_MAX: Final = 32


class ConversionWishes:
    """The wish lists of owners, and the conversions started for them.

    Args:
        inner: the cache that gets wishes for shards of known size.
        converter: converts the other shards.
        flights: running conversions, shared with callers of ``acquire``.
        bring: converts one shard.
    """

    def __init__(
        self,
        inner: Cache,
        converter: Converter,
        flights: SingleFlight[ObjectRef, ObjectRef],
        bring: Callable[[ObjectRef], Awaitable[ObjectRef]],
    ) -> None:
        self._inner = inner
        self._converter = converter
        self._flights = flights
        self._bring = bring
        self._lists: dict[str, tuple[ObjectRef, ...]] = {}
        self._passed_on: dict[str, list[ObjectRef]] = {}
        self._running: dict[ObjectRef, Flight[ObjectRef, ObjectRef]] = {}
        self._failed: set[ObjectRef] = set()
        self._closed = False

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace ``owner``'s list; conversions that no list contains any more are cancelled."""
        if refs:
            self._lists[owner] = tuple(dict.fromkeys(refs))
            self._failed.difference_update(refs)
        else:
            self._lists.pop(owner, None)
        self._pass_on(owner)
        wanted = {ref for wishes in self._lists.values() for ref in wishes}
        for ref in [ref for ref in self._running if ref not in wanted]:
            self._flights.leave(self._running.pop(ref))
        self.pump()

    def shards(self) -> set[ObjectRef | None]:
        """Return the shards in all lists, as far as they are known."""
        return {
            self._converter.facts.converted(ref)
            for wishes in self._lists.values()
            for ref in wishes
            if ref.conversion is not None
        }

    def ended(self, ref: ObjectRef, error: BaseException | None) -> None:
        """Record the end of a conversion. A failure is dropped here; ``acquire`` of the shard will raise it."""
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
                self._pass_on(owner)
        self.pump()

    def pump(self) -> None:
        """Start as many conversions as allowed: few of large objects, or many of small ones far away."""
        while not self._closed and (ref := self._next()) is not None and self._admits(ref):
            self._running[ref] = self._flights.join(ref, partial(self._bring, ref))

    def _admits(self, ref: ObjectRef) -> bool:
        running_count = len(self._running)
        count = len(self._converter.fresh) + running_count
        if running_count < _AHEAD_MAX and count < _FRESH_MAX:
            return True
        running_bytes = sum(map(charge_bytes, self._running))
        return (
            count < _SMALL_MAX and self._converter.fresh.size_bytes + running_bytes + charge_bytes(ref) <= SMALL_BYTES
        )

    def close(self) -> None:
        """Drop all lists; the caller cancels the conversions."""
        self._closed = True
        self._lists.clear()

    def _next(self) -> ObjectRef | None:
        """Return the unconverted wish that is nearest to the start of any list."""
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
        if ref.conversion is None or ref in self._running or ref in self._failed:
            return False
        return self._converter.facts.known(ref) is None

    def _pass_on(self, owner: str) -> None:
        """Pass the known shards to the inner cache, in order; if none is known yet, keep one earlier wish alive."""
        wishes = self._lists.get(owner, ())
        known = [
            shard
            for ref in wishes
            if (shard := self._converter.facts.converted(ref) if ref.conversion is not None else ref) is not None
        ]
        if wishes and not known:
            known = [shard for shard in self._passed_on.get(owner, []) if self._inner.knows(shard)][:1]
        if wishes:
            self._passed_on[owner] = known
        else:
            self._passed_on.pop(owner, None)
        self._inner.prefetch(known, owner)
