"""Sample indexes of shards: each is read once for all sessions, and kept while there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.cache.pins import with_pinned
from feedd.catalog.megatron_index import counted_by
from feedd.catalog.record_idx import say_fewer
from feedd.dataset.pack_layout import is_pack
from feedd.errors import BadShard, CacheUnavailable, Unsupported
from feedd.flow.lru import WeightedLru
from feedd.flow.pools import CPU
from feedd.flow.singleflight import Flight, SingleFlight
from feedd.flow.tasks import off_loop
from feedd.formats.format_registry import format_for
from feedd.formats.packed_objects import index_of
from feedd.tables.registry import conversion_named, count_conversion, is_ready

if TYPE_CHECKING:
    import asyncio

    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.shard_index import ShardIndex
    from feedd.values import ObjectRef, ShardFile

_KEPT_BYTES = 256 << 20
_ENTRY_BYTES = 1 << 10  # of an index without columns
_INDEXED_BYTES = 1 << 10  # indexing an object of a pack takes 2.5 us, as long as scanning this many bytes
_OUTLINED_BYTES: Final = 1 << 20  # a request costs about as much as this many bytes
_COLUMNS_BYTES = 16  # of a sample of a span: start and size


class _Key(NamedTuple):
    """Key of an index: an object, and the format as which it is read."""

    ref: ObjectRef
    format: str


IndexRun = Flight[_Key, "ShardIndex"]
"""The running read of an index, shared by all callers that want it."""


class Indexes:
    """Indexes by their object and format, without labels."""

    def __init__(self, stages: Stages, group: asyncio.TaskGroup) -> None:
        """Start empty; ``group`` owns shared reads."""
        self._stages = stages
        self._cached: WeightedLru[_Key, ShardIndex] = WeightedLru(_KEPT_BYTES)
        self._misjudged_count = 0
        self._runs: SingleFlight[_Key, ShardIndex] = SingleFlight(group)

    def cached(self, view: DatasetView, shard: int) -> ShardIndex | None:
        """Return a shard's index if it is in memory."""
        return self._current().get(_key(view, shard))

    def _current(self) -> WeightedLru[_Key, ShardIndex]:
        """Return the indexes that hold: none after a table got another layout, which is rare."""
        if self._misjudged_count != self._stages.cache.misjudged_count:
            self._misjudged_count = self._stages.cache.misjudged_count
            self._cached.clear()
        return self._cached

    async def of(self, view: DatasetView, shard: int) -> ShardIndex:
        """Return a shard's index, fetching the shard if needed.

        Raises:
            FeeddError: an error of the shard or of its store, such as BadShard or NotFound.
        """
        key = _key(view, shard)
        index = self._current().get(key)
        return index or await self._runs.do(key, lambda: self._read(view, key, shard))

    async def of_conversion(self, view: DatasetView, ref: ObjectRef) -> ShardIndex:
        """Return the index of a conversion of a listed object other than its shard, such as its first samples.

        Raises:
            FeeddError: an error of the object or of its store, such as BadShard or NotFound.
        """
        key = _Key(ref, "")
        index = self._current().get(key)
        return index or await self._runs.do(key, lambda: self._read(view, key))

    async def outline(self, view: DatasetView, shard: int) -> ShardIndex | None:
        """Return the samples and fields of a shard from its headers; None: the whole shard must be read.

        Raises:
            FeeddError: an error of the store, such as NotFound.
        """
        ref = view.refs[shard]
        if ref.size_bytes < _OUTLINED_BYTES or is_pack(ref) or shard in view.listing.spans:
            return None
        try:
            conversion = count_conversion(ref.conversion, view.listing.format_of(shard) or format_for(ref.url))
            if conversion is None:
                return None
            return await self.of_conversion(view, replace(ref, conversion=conversion))
        except (BadShard, Unsupported):
            return None  # the whole shard tells its samples, or why it cannot be read

    def begin(self, view: DatasetView, shard: int) -> IndexRun | None:
        """Start reading a shard's index, fetching the shard if needed; None: the index is in memory.

        Each started read needs one call of ``leave``.

        Raises:
            Draining: the daemon is shutting down.
        """
        key = _key(view, shard)
        if self._current().get(key) is not None:
            return None
        return self._runs.join(key, lambda: self._read(view, key, shard))

    def leave(self, run: IndexRun) -> bool:
        """Release a started read; return True if no other caller wants it and it is ending."""
        return self._runs.leave(run)

    async def close(self) -> None:
        """End all running reads."""
        await self._runs.cancel_all()

    async def _read(self, view: DatasetView, key: _Key, shard: int = -1) -> ShardIndex:
        misjudged_count = self._stages.cache.misjudged_count
        if is_pack(key.ref):
            index = await _index_of_pack(view, key.ref)
        elif shard in view.listing.spans:
            index = await _index_of_span(view, shard)
        else:
            # a name that no format has is refused before the object is fetched
            name = key.format or ("" if key.ref.conversion is not None else format_for(key.ref.url))

            async def read(files: tuple[ShardFile, ...]) -> ShardIndex:
                told = None if key.format else self._stages.cache.index_of(key.ref)
                if told is None and files[0].inflight:
                    raise CacheUnavailable("the index is no longer known", object=key.ref.url, stage="cache")
                said = key.format or files[0].format or name
                return told or await self._stages.pool.index(files[0], said, key.ref.size_bytes)

            ref = counted_by(key.ref, key.format)
            if ref.conversion is None:
                index = await with_pinned(self._stages.cache, [ref], read)
            else:
                index = await self._stages.inflight.read_unfinished(ref, read)
        if shard in view.listing.idx_bytes:
            await CPU.run(say_fewer, key.ref, view.listing.idx_bytes[shard], index)
        if misjudged_count == self._stages.cache.misjudged_count:  # else the index may be that of another layout
            self._current().put(key, index, index.nbytes + _ENTRY_BYTES)
        return index


def _key(view: DatasetView, shard: int) -> _Key:
    ref, name = view.refs[shard], view.read_as.get(shard)
    if name is None:
        named = view.listing.format_of(shard)
        name = view.read_as[shard] = "" if conversion_named(named) or is_ready(ref.conversion) else named
    return _Key(ref, name)


async def _index_of_pack(view: DatasetView, ref: ObjectRef) -> ShardIndex:
    """Return the index that the pack itself would give, from the listing."""
    packs, number = next((one, number) for one in view.listing.packs if (number := one.find(ref)) is not None)

    def read() -> ShardIndex:
        return packs.own_index(number) or index_of(packs.table(number))

    return await off_loop(read, len(packs.span(number)) * _INDEXED_BYTES)


async def _index_of_span(view: DatasetView, shard: int) -> ShardIndex:
    """Return the index of a span, from the listing."""
    span, size_bytes = view.listing.spans[shard], view.refs[shard].size_bytes
    columns_bytes = 0 if span.is_regular(size_bytes) else _COLUMNS_BYTES * span.count
    return await off_loop(lambda: span.index(size_bytes), columns_bytes)
