"""The node's cache as sessions see it: refs with a conversion stand for the shards converted from objects."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from feedd.cache import os_errors
from feedd.cache.pins import Pins
from feedd.errors import CacheUnavailable, FeeddError
from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CACHE_DISK
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import run_all
from feedd.tables.converter import SMALL_BYTES
from feedd.tables.objects import CHARGE_BYTES_MAX, charge_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from feedd.cache.cache import Cache
    from feedd.cache.report import CacheEntry, CacheStats
    from feedd.flow.singleflight import Flight
    from feedd.protocols import PinnedShards
    from feedd.shard_index import ShardIndex
    from feedd.tables.converter import Converter
    from feedd.values import NextUses, ObjectRef


_LANDINGS_MAX = 2  # large objects, or more small ones


class ConvertingCache:
    """A ``ShardCache`` over a cache whose fetcher is ``converter``.

    Refs without a conversion pass through. A listed ref with a conversion is translated into the ref of its converted
    shard. The first conversion learns the shard's size: its result goes into memory, and from there into the cache.
    Opening and closing the inner cache is up to others, except for ``close``.
    """

    def __init__(self, inner: Cache, converter: Converter) -> None:
        self._inner = inner
        self._converter = converter
        self._group = asyncio.TaskGroup()
        self._landing = ByteBudget(_LANDINGS_MAX * CHARGE_BYTES_MAX)
        self._acquired: Counter[ObjectRef] = Counter()  # refs that callers of ``acquire`` wait for
        self._next_uses: NextUses | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"ConvertingCache({self._inner!r})"

    async def __aenter__(self) -> Self:
        """Read the known results of earlier conversions."""
        await CACHE_DISK.run(self._converter.facts.load)
        await self._group.__aenter__()
        self._flights: SingleFlight[ObjectRef, ObjectRef] = SingleFlight(self._group, self._brought)
        self._wishes = ConversionWishes(self._inner, self._converter, self._flights, self._bring)
        self._converter.fresh.on_free = self._wishes.pump
        self._converter.ranges.pinned = self._pinned
        self._converter.is_needed_now = lambda ref: self._acquired[ref] > 0
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End running conversions."""
        try:
            await self._end()
        finally:
            await self._group.__aexit__(None, None, None)

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Return pins on all of ``refs``; fetch or convert missing shards. See ``ShardCache.acquire``.

        Raises, in addition:
            BadShard, Unsupported: an object cannot be converted.
            ResourceExhausted: not enough memory for a conversion.
        """
        if not any(ref.conversion is not None for ref in refs):
            return await self._inner.acquire(refs)
        wanted = [ref for ref in dict.fromkeys(refs) if ref.conversion is not None]
        with self._awaiting(wanted):
            try:
                formats, pins = await self._acquire(refs, wanted)
            except CacheUnavailable:
                if all(self._converter.facts.known(ref) is not None for ref in wanted):
                    raise
                formats, pins = await self._acquire(refs, wanted)  # the size that an object told was wrong
        files = zip(pins.files, formats, strict=True)
        return Pins(tuple(replace(file, format=name) if name else file for file, name in files), pins.release)

    async def _acquire(self, refs: Sequence[ObjectRef], wanted: Sequence[ObjectRef]) -> tuple[list[str], PinnedShards]:
        """Return format names and pins of ``refs``; ``wanted`` are those with a conversion."""
        while unknown := [ref for ref in wanted if self._converter.facts.known(ref) is None]:
            await run_all(self._land(ref, alone=len(unknown) == 1) for ref in unknown)
        formats = [self._format(ref) for ref in refs]
        return formats, await self._inner.acquire([self._shard(ref) for ref in refs])

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list; unconverted shards are converted in the background, and then wished for."""
        if not self._closed:
            self._wishes.wish(owner, refs)
            self._tidy()

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Take the times at which shards are needed next from ``times``, which need not know sizes of shards."""
        self._next_uses = times
        if refs is not None and any(ref.conversion is not None for ref in refs):
            known = (self._converter.facts.converted(ref) if ref.conversion is not None else ref for ref in refs)
            refs = [shard for shard in known if shard is not None]
        self._inner.note_next_use(times, refs)

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry, named as listed or as in the cache; it is converted again on the next use."""
        shard = self._converter.facts.converted(ref) or ref if ref.conversion is not None else ref
        self._converter.fresh.drop(shard)
        await self._inner.discard(shard)

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an object's entry, because the whole object can be fetched by now."""
        await self._inner.renew(ref)

    async def close(self) -> None:
        """Cancel conversions and close the inner cache. Calling it again has no effect."""
        await self._end()
        await self._inner.close()

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes of all entries."""
        return self._inner.limit_bytes

    @property
    def stats(self) -> CacheStats:
        """Current statistics of the cache."""
        return self._inner.stats

    def entries(self) -> list[CacheEntry]:
        """Return the complete entries, in no order."""
        return self._inner.entries()

    def holds(self, ref: ObjectRef) -> bool:
        """Whether a shard is complete in the cache."""
        shard = self._converter.facts.converted(ref) if ref.conversion is not None else ref
        return shard is not None and self._inner.holds(shard)

    def knows(self, ref: ObjectRef) -> bool:
        """Whether a shard is in the cache, or being filled."""
        shard = self._converter.facts.converted(ref) if ref.conversion is not None else ref
        return shard is not None and self._inner.knows(shard)

    @property
    def misjudged_count(self) -> int:
        """How often indexes that were taken before no longer hold; see ``Converter``."""
        return self._converter.misjudged_count

    def index_of(self, ref: ObjectRef) -> ShardIndex | None:
        """Return the index that the shard's conversion told; None: the shard is none, or its index must be read."""
        shard = None if ref.conversion is None else self._converter.facts.converted(ref)
        return None if shard is None else self._converter.indexes.get(shard)

    @asynccontextmanager
    async def sized(self, ref: ObjectRef) -> AsyncIterator[ObjectRef]:
        """Yield the ref of a shard as in the cache; if its size is unknown, convert it and keep it in memory.

        Raises:
            FeeddError: as ``acquire`` for conversions.
        """
        if ref.conversion is None:
            yield ref
            return
        with self._awaiting((ref,)):
            yield await self._known(ref)

    async def _pinned(self, plain: ObjectRef, bring: bool) -> PinnedShards | None:  # noqa: FBT001 - the seam's signature
        """Pin an unconverted object that is in the cache or being fetched; with ``bring``, fetch it into the cache.

        Only ``bring`` may wait for space, as for any shard: the object is as large as the shard converted from it next,
        and is evicted first.
        """
        if self._closed or not (bring or self._inner.knows(plain)):
            return None
        try:
            return await self._inner.acquire([plain])
        except FeeddError:
            return None  # the converter fetches the object itself, and reports its errors

    def _shard(self, ref: ObjectRef) -> ObjectRef:
        if ref.conversion is None:
            return ref
        shard = self._converter.facts.converted(ref)
        assert shard is not None, "made before it is asked for"
        return shard

    def _format(self, ref: ObjectRef) -> str:
        fact = self._converter.facts.known(ref) if ref.conversion is not None else None
        return "" if fact is None else fact.format_name

    async def _land(self, ref: ObjectRef, *, alone: bool) -> None:
        """Convert a shard of unknown size; with several, put it into the cache at once, to use little memory."""
        async with self._landing.reserve(charge_bytes(ref)):
            shard = await self._known(ref)
        if not alone:  # others then need not wait for space, for instance in this shard's quota
            (await self._inner.acquire([shard])).release()

    async def _known(self, ref: ObjectRef) -> ObjectRef:
        """Return the ref of a shard; convert it if its size is unknown."""
        shard = self._converter.facts.converted(ref)
        if shard is not None:
            return shard
        if self._closed:
            raise os_errors.closed()
        return await self._flights.do(ref, lambda: self._bring(ref))

    async def _bring(self, ref: ObjectRef) -> ObjectRef:
        return await self._converter.bring(ref, lambda: self._urgency(ref))

    def _urgency(self, ref: ObjectRef) -> float:
        if self._acquired[ref]:
            return -math.inf
        return math.inf if self._next_uses is None else self._next_uses((ref,))[0]

    def _brought(self, ref: ObjectRef, error: BaseException | None) -> None:
        """Update wishes: a shard is converted."""
        self._wishes.ended(ref, error)
        self._tidy()

    @contextmanager
    def _awaiting(self, refs: Sequence[ObjectRef]) -> Iterator[None]:
        """Keep shards converted from ``refs`` in memory while a caller waits for them."""
        self._acquired.update(refs)
        try:
            yield
        finally:
            self._acquired.subtract(refs)
            self._acquired = +self._acquired
            self._tidy()

    def _tidy(self) -> None:
        """Free converted shards that no caller and no wish needs."""
        if not self._converter.fresh:
            return
        wanted = {self._converter.facts.converted(ref) for ref in self._acquired} | self._wishes.shards()
        self._converter.fresh.keep_only(wanted.__contains__)

    async def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wishes.close()
        await self._flights.cancel_all()
        self._converter.fresh.keep_only(lambda _: False)


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
