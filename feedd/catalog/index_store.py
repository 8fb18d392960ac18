"""Where the samples of each shard lie: read once however many ask, and kept as long as there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from feedd.cache.pinned_reads import with_pinned
from feedd.catalog.megatron_index import told_by
from feedd.catalog.record_idx import say_fewer
from feedd.convert.conversion_registry import form_named, is_ready
from feedd.dataset.listing import format_of
from feedd.dataset.pack_layout import is_pack
from feedd.flow.lru import WeightedLru
from feedd.flow.pools import CPU
from feedd.flow.singleflight import Flight, SingleFlight
from feedd.flow.tasks import off_loop
from feedd.formats.format_registry import format_for
from feedd.formats.packed_objects import index_of

if TYPE_CHECKING:
    import asyncio

    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import Listing
    from feedd.values import ObjectRef, ShardIndex

_KEPT_BYTES = 256 << 20
_INDEXED_BYTES = 1 << 10  # to index an object of a pack, 2.5 us, is as long as to go over so many bytes


class _Key(NamedTuple):
    """What an index is of: an object, read as what it was named."""

    ref: ObjectRef
    format: str


IndexRun = Flight[_Key, "ShardIndex"]
"""An index being read, for all who want it."""


class Indexes:
    """Indexes by their object and what it is read as; nobody's labels are in them."""

    def __init__(self, stages: Stages, group: asyncio.TaskGroup) -> None:
        """Hold nothing yet; ``group`` owns what is read for several at once."""
        self._stages = stages
        self._kept: WeightedLru[_Key, ShardIndex] = WeightedLru(_KEPT_BYTES)
        self._runs: SingleFlight[_Key, ShardIndex] = SingleFlight(group)

    def held(self, listing: Listing, shard: int) -> ShardIndex | None:
        """Return a shard's index if it is at hand."""
        return self._kept.get(_key(listing, shard))

    async def of(self, listing: Listing, shard: int) -> ShardIndex:
        """Return a shard's index, fetching the shard if need be.

        Raises:
            BadShard, NotFound, ...: said by the shard, or by its store.
        """
        key = _key(listing, shard)
        index = self._kept.get(key)
        return index or await self._runs.do(key, lambda: self._read(listing, key, shard))

    async def made(self, listing: Listing, ref: ObjectRef) -> ShardIndex:
        """Return the index of what is made of an object of a listing beside its shard, such as its first samples.

        Raises:
            BadShard, NotFound, ...: said by the object.
        """
        key = _Key(ref, "")
        index = self._kept.get(key)
        return index or await self._runs.do(key, lambda: self._read(listing, key))

    def begin(self, listing: Listing, shard: int) -> IndexRun | None:
        """Read a shard's index meanwhile, fetching the shard if need be; None: it is at hand.

        Balanced by one ``leave``.

        Raises:
            Draining: the daemon is going away.
        """
        key = _key(listing, shard)
        if self._kept.get(key) is not None:
            return None
        return self._runs.join(key, lambda: self._read(listing, key, shard))

    def leave(self, run: IndexRun) -> bool:
        """Give up what was begun; True: nobody else wants it, and it is ending."""
        return self._runs.leave(run)

    async def close(self) -> None:
        """End what is under way."""
        await self._runs.cancel_all()

    async def _read(self, listing: Listing, key: _Key, shard: int = -1) -> ShardIndex:
        if is_pack(key.ref):
            index = await _index_of_pack(listing, key.ref)
        else:
            name = key.format or ("" if key.ref.form else format_for(key.ref.url))  # before it is fetched
            index = await with_pinned(
                self._stages.cache,
                [told_by(key.ref, key.format)],
                lambda files: self._stages.pool.index(files[0], key.format or files[0].format or name),
            )
        if shard in listing.idx_bytes:
            await CPU.run(say_fewer, key.ref, listing.idx_bytes[shard], index)
        weight = index.starts.nbytes + index.sizes.nbytes + index.key_ends.nbytes + len(index.key_blob)
        self._kept.put(key, index, weight)
        return index


def _key(listing: Listing, shard: int) -> _Key:
    ref, name = listing.refs[shard], listing.read_as.get(shard)
    if name is None:
        named = format_of(listing, shard)
        name = listing.read_as[shard] = "" if form_named(named) or is_ready(ref.form) else named
    return _Key(ref, name)


async def _index_of_pack(listing: Listing, ref: ObjectRef) -> ShardIndex:
    """Return what the pack itself would say, which the listing knows as well."""
    packs, number = next((one, number) for one in listing.packs if (number := one.find(ref)) is not None)
    return await off_loop(lambda: index_of(packs.table(number)), len(packs.span(number)) * _INDEXED_BYTES)
