"""What is known of datasets: listings, and the sample index of each shard. Shared by all sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.decode.formats.registry import format_for
from feedd.flow.lru import WeightedLru
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import run_all
from feedd.plan.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from feedd.pipeline.stages import Stages
    from feedd.values import ObjectRef, ShardIndex

_FRESH_S = 30.0  # ranks of one launch open within this of each other and share one listing
_LISTINGS_KEPT = 16
_INDEX_BYTES = 256 << 20


class Shelf:
    """Listings by their URLs, indexes by their object; each fetched once however many sessions ask."""

    def __init__(self, stages: Stages, group: asyncio.TaskGroup) -> None:
        self._stages = stages
        self._listings: dict[tuple[str, ...], Listing] = {}
        self._listing_flight: SingleFlight[tuple[str, ...], Listing] = SingleFlight(group)
        self._indexes: WeightedLru[ObjectRef, ShardIndex] = WeightedLru(_INDEX_BYTES)
        self._index_flight: SingleFlight[ObjectRef, ShardIndex] = SingleFlight(group)

    async def listing(self, urls: tuple[str, ...], known: Callable[[Listing], bool]) -> Listing:
        """Return the listing of ``urls``: the held one where it is fresh or ``known`` to the run, else a new one."""
        held = self._listings.get(urls)
        if held is not None:
            age_s = self._stages.clock.monotonic_s() - held.listed_s
            if age_s < _FRESH_S or known(held):
                return held
        return await self._listing_flight.do(urls, lambda: self._list(urls))

    def forget(self, listing: Listing) -> None:
        """Drop a listing that turned out to be stale; sessions that hold it keep it."""
        for urls in [urls for urls, held in self._listings.items() if held is listing]:
            del self._listings[urls]

    async def index(self, listing: Listing, shard: int) -> ShardIndex:
        """Return a shard's sample index, fetching the shard if need be; the listing then knows its count."""
        ref = listing.refs[shard]
        index = self._indexes.get(ref)
        if index is None:
            index = await self._index_flight.do(ref, lambda: self._read_index(ref))
        listing.counts[shard] = index.sample_count
        return index

    async def indexes(self, listing: Listing, shards: Iterable[int]) -> list[ShardIndex]:
        """Return the indexes of several shards, fetched side by side; the listing then knows all their counts."""
        wanted = tuple(shards)
        known = {shard: self._indexes.get(listing.refs[shard]) for shard in wanted}
        held = {shard: index for shard, index in known.items() if index is not None}
        listing.counts.update((shard, index.sample_count) for shard, index in held.items())
        if len(held) == len(wanted):
            return [held[shard] for shard in wanted]
        return await run_all(self.index(listing, shard) for shard in wanted)

    async def close(self) -> None:
        """End what is under way."""
        await self._listing_flight.cancel_all()
        await self._index_flight.cancel_all()

    async def _list(self, urls: tuple[str, ...]) -> Listing:
        refs = await self._stages.sources.resolve(urls)
        listing = await asyncio.to_thread(Listing.of, refs, self._stages.clock.monotonic_s())
        self._listings.pop(urls, None)
        self._listings[urls] = listing
        while len(self._listings) > _LISTINGS_KEPT:
            del self._listings[next(iter(self._listings))]
        return listing

    async def _read_index(self, ref: ObjectRef) -> ShardIndex:
        with await self._stages.cache.acquire([ref]) as pinned:
            index = await self._stages.pool.index(pinned.files[0], format_for(ref.url))
        weight = index.starts.nbytes + index.sizes.nbytes + index.key_ends.nbytes + len(index.key_blob)
        self._indexes.put(ref, index, weight)
        return index
