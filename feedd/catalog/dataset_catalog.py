"""The known listings of datasets, and the sample index of each shard, shared by all sessions."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from feedd.access import EVERYTHING, Access
from feedd.catalog.dataset_lister import DatasetLister
from feedd.catalog.index_store import Indexes
from feedd.catalog.label_fields import LabelledIndexes
from feedd.catalog.token_windows import Cuts
from feedd.catalog.window_sorting import Sorting
from feedd.errors import ObjectChanged
from feedd.flow.pools import CACHE_DISK, CPU
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import run_all
from feedd.ordering.buckets import NeedLengths
from feedd.ordering.epoch import NeedCounts
from feedd.ordering.sorted_windows import NeedOrder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from feedd.catalog.learned_counts import Learned
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView, Listing
    from feedd.ordering.batch_plan import RunPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.shard_index import ShardIndex
    from feedd.values import Cursor, EpochEnd

_Urls = tuple[tuple[str, ...], ...]
"""URLs of each source of a dataset."""
_Wanted = tuple[_Urls, Cuts, Access]

_FRESH_S = 30.0  # ranks of one launch open within this time and share one listing
_LISTINGS_KEPT = 16
_VERSIONS_MAX = 32  # versions of a manifest that are searched for the one of a run


class DatasetCatalog:
    """Listings by URLs, and indexes by object; each is fetched once for all sessions.

    Attributes:
        readings: indexes as read from the shards; this class adds the listing's labels.
    """

    def __init__(self, stages: Stages, group: asyncio.TaskGroup, learned: Learned, span_bytes: int = 0) -> None:
        """Start empty.

        Args:
            stages: the open stages.
            group: owns shared work.
            learned: counts that earlier reads told.
            span_bytes: least size of the spans of large objects; 0: all objects are read whole.
        """
        self.readings = Indexes(stages, group)
        self._stages = stages
        self._learned = learned
        self._span_bytes = span_bytes
        self._lister = DatasetLister(stages.sources, stages.clock, learned)
        # By URLs and content, so that a run that began before a dataset grew finds its older listing.
        self._listings: dict[tuple[_Wanted, bytes], Listing] = {}
        self._listing_flight: SingleFlight[_Wanted, Listing] = SingleFlight(group)
        self._sorting = Sorting(group)
        self._labelled = LabelledIndexes()

    async def listing(self, urls: tuple[str, ...], known: Callable[[Listing], bool]) -> Listing:
        """Return a held listing that is ``known`` to the run, else the newest if it is fresh, else a new listing."""
        return await self.mixed((urls,), known, EVERYTHING)

    async def mixed(
        self,
        sources: _Urls,
        known: Callable[[Listing], bool] | None,
        access: Access = EVERYTHING,
        cuts: Cuts = (),
    ) -> Listing:
        """Return one listing of several sources, one after another; otherwise like ``listing``.

        Args:
            sources: URLs of each source.
            known: whether a listing is the run's; called in a thread. None: the run begins.
            access: what the caller may read; listings are shared only by callers who may read the same.
            cuts: how each source's files of tokens are split; empty: there are no such files.
        """
        wanted = sources, cuts, access
        cached = {name: listing for name, listing in self._listings.items() if name[0] == wanted}
        if cached and known is not None:  # checking ``known`` may take as long as the listing is
            found = await CPU.run(lambda: next((one for one in cached.items() if known(one[1])), None))
            if found is not None:
                name, listing = found
                self._listings.pop(name, None)
                self._listings[name] = listing  # moves it to the end, so that it is dropped last
                return listing
        newest = max(cached.values(), key=lambda listing: listing.listed_s, default=None)
        if newest is not None and self._stages.clock.monotonic_s() - newest.listed_s < _FRESH_S:
            found_listing = newest
        else:
            found_listing = await self._listing_flight.do(wanted, lambda: self._list(wanted))
        if known is None or not found_listing.frozen or await CPU.run(known, found_listing):
            return found_listing
        return await self._earlier(wanted, known, found_listing) or found_listing

    async def _earlier(self, wanted: _Wanted, known: Callable[[Listing], bool], newest: Listing) -> Listing | None:
        """Return the listing with which a run began, by earlier versions of one source's manifest, or None."""
        count = len(wanted[0])
        for source in range(count):
            before = newest.frozen
            for back in range(1, _VERSIONS_MAX):
                backs = tuple(back if one == source else 0 for one in range(count))
                listing = await self._list(wanted, backs)
                if listing.frozen == before:
                    break  # there is no earlier version
                if await CPU.run(known, listing):
                    return listing
                self.forget(listing)
                before = listing.frozen
        return None

    @contextlib.contextmanager
    def started(self, sources: _Urls, access: Access, cuts: Cuts = ()) -> Iterator[None]:
        """Start listing, inside the context, for a following call of ``mixed``, unless a listing is held."""
        wanted = sources, cuts, access
        if any(name[0] == wanted for name in self._listings):
            yield
            return
        flight = self._listing_flight.join(wanted, lambda: self._list(wanted))
        try:
            yield
        finally:
            self._listing_flight.leave(flight)

    def forget(self, listing: Listing) -> None:
        """Drop a stale listing; sessions that hold it keep it."""
        for name in [name for name, cached in self._listings.items() if cached is listing]:
            del self._listings[name]

    async def index(self, view: DatasetView, shard: int, *, outline: bool = False) -> ShardIndex:
        """Return a shard's sample index, fetching the shard if needed; the listing then knows the shard's count.

        With ``outline``, headers are enough if they tell samples and fields: the index then has no places of values.

        Raises:
            ObjectChanged: the listing had another count; it is dropped.
        """
        index = (outline and await self.readings.outline(view, shard)) or await self.readings.of(view, shard)
        self._learn(view, shard, index)
        return self._labelled.of(view.listing, shard, index)

    async def indexes(self, view: DatasetView, shards: Iterable[int]) -> list[ShardIndex]:
        """Return the indexes of several shards, fetched in parallel; the listing then knows all their counts.

        Raises:
            ObjectChanged: see ``index``.
        """
        wanted = tuple(shards)
        known = {shard: self.readings.cached(view, shard) for shard in wanted}
        cached = {shard: index for shard, index in known.items() if index is not None}
        for shard, index in cached.items():
            self._learn(view, shard, index)
        if len(cached) == len(wanted):
            return [self._labelled.of(view.listing, shard, cached[shard]) for shard in wanted]
        return await run_all(self.index(view, shard) for shard in wanted)

    async def fresh(self, urls: tuple[str, ...]) -> Listing:
        """Return a separate listing that knows only the counts of feedd's own index beside the data."""
        return await self._lister.counted(urls)

    async def draw(
        self, view: DatasetView, reader: AnyReader, at: Cursor, count: int = 1, stride: int = 1
    ) -> RunPlan | EpochEnd:
        """Return the plan of ``reader``, see ``Reader.draw``, after indexing the shards that the plan needs.

        Raises:
            ObjectChanged: see ``indexes``.
        """
        while isinstance(drawn := reader.draw(at, count, stride), NeedCounts | NeedOrder):
            if isinstance(drawn, NeedOrder):
                await self._sorting.sort(drawn)
                continue
            indexes = await self.indexes(view, drawn.shards)
            if isinstance(drawn, NeedLengths):
                drawn.learn(indexes)
        following = reader.next_order()
        if following is not None:
            self._sorting.begin(following)
        return drawn

    async def close(self) -> None:
        """End all work that is running."""
        await self._listing_flight.cancel_all()
        await self.readings.close()
        await self._sorting.close()
        await CACHE_DISK.run(self._learned.save)

    async def _list(self, wanted: _Wanted, backs: tuple[int, ...] = ()) -> Listing:
        """List a dataset; of frozen manifests, ``backs`` says how many versions before the newest to take."""
        listing = await self._lister.list(*wanted, self._span_bytes, backs)
        if any(backs):
            listing.listed_s = -math.inf  # only for the run that began with it
        return await self._keep(wanted, listing)

    async def _keep(self, wanted: _Wanted, listing: Listing) -> Listing:
        """Hold a new listing, or renew the one that is held of the same objects; return it."""
        cached = self._listings.pop((wanted, listing.digest), None)
        # If nothing changed, keep the learned counts, unless a sidecar was corrected after runs had planned with it.
        if cached is not None and await CPU.run(_unchanged, cached, listing):
            await CPU.run(cached.renew, listing)
            listing = cached
        self._listings[wanted, listing.digest] = listing
        while len(self._listings) > _LISTINGS_KEPT:
            del self._listings[next(iter(self._listings))]
        return listing

    def _learn(self, view: DatasetView, shard: int, index: ShardIndex) -> None:
        """Record a count, once, for this listing and for later daemons, because indexes may be dropped."""
        if shard in view.learned:
            return
        view.field_names.add(view.listing.source_of(shard), shard, index.fields, index.unread)
        if shard not in view.listing.spans:  # of spans, every listing tells the count
            self._learned.note(view.refs[shard], index.sample_count, view.listing.format_of(shard))
        try:
            view.learn(shard, index.sample_count)
        except ObjectChanged:
            self.forget(view.listing)  # plans used a wrong count, so the next open lists again
            raise


def _unchanged(cached: Listing, newer: Listing) -> bool:
    """Whether a newer listing of the same objects reads and counts them like the earlier one."""
    same = cached.firsts == newer.firsts and cached.named == newer.named
    return same and cached.contradicts(newer.counts) is None
