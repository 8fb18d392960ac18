"""Builds one shard from the frozen source: a pure function of the source and the number of the shard."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from feedd.access import FILE_ROOT
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_names import shard_name
from feedd.errors import BadSample, NotFound, ObjectChanged
from feedd.fetch.local_store import read_files
from feedd.flow.range_sinks import MemorySink
from feedd.pack.packed_sample import RESIZABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.sources import Sources
    from feedd.pack.destination import Destination, ShardRecord
    from feedd.pack.frozen_source import FrozenSource
    from feedd.pack.packed_sample import Piece, ShardWriter
    from feedd.values import ObjectRef


class ShardBuilder:
    """Builds shards of one pack, several at a time.

    Args:
        sources: reads the objects.
        target: takes the shards.
        frozen: the source.
        writer: writes the format.
    """

    def __init__(self, sources: Sources, target: Destination, frozen: FrozenSource, writer: ShardWriter) -> None:
        self._sources = sources
        self._target = target
        self._frozen = frozen
        self._writer = writer
        self._free: list[NDArray[np.uint8]] = []  # fresh memory costs as much as reading a file into it

    async def build(self, shard: int) -> ShardRecord:
        """Write a shard, unless it is there already; return its record.

        Raises:
            ObjectChanged: an object is another version than the frozen one.
            NotFound, PermissionDenied, StoreUnavailable: the answer of a store.
            BadSample: the format cannot hold a sample, or an image cannot be resized.
        """
        frozen, name = self._frozen, shard_name(shard, self._writer.extension)
        found = await self._target.find(name, frozen.digest)
        if found is not None:
            return found
        refs = frozen.refs(shard)
        size_bytes = sum(ref.size_bytes for ref in refs)
        memory = self._memory(size_bytes)
        try:
            values = await self._values(refs, memory[:size_bytes].data)
            if frozen.options.resize is not None:
                values = self._resized(refs, values)
            pieces = self._writer.pieces(frozen.samples(shard, values), frozen.fields)
            written = await self._target.write_shard(name, pieces, frozen.digest, frozen.samples_in(shard))
        except (ObjectChanged, NotFound) as error:
            if not error.object.startswith(self._target.url):
                error.hint = "the source has changed since the pack began: begin anew with another destination"
            raise
        self._free.append(memory)  # after an error a thread may still use the memory
        return written

    def _memory(self, size_bytes: int) -> NDArray[np.uint8]:
        free = self._free.pop() if self._free else np.empty(0, np.uint8)
        return free if len(free) >= size_bytes else np.empty(size_bytes + size_bytes // 8, np.uint8)

    async def _values(self, refs: Sequence[ObjectRef], memory: memoryview) -> Iterable[Piece]:
        """Return the bytes of objects; files are read when their bytes are taken."""
        if refs[0].root == FILE_ROOT:
            return read_files(refs, memory)
        await self._sources.fetcher.fetch_members(refs, MemorySink(memory))
        ends = itertools.accumulate(ref.size_bytes for ref in refs)
        return [memory[low:high] for low, high in itertools.pairwise([0, *ends])]

    def _resized(self, refs: Sequence[ObjectRef], values: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the objects, with images that are larger than wanted reduced."""
        from feedd.codecs.reduced_image import reduced  # noqa: PLC0415 - slow, and for this option only

        side, quality = self._frozen.options.resize, self._frozen.options.quality
        assert side is not None, "only called to resize"
        for ref, data in zip(refs, values, strict=True):
            extension = split_name(ref.key)[1]
            try:
                small = reduced(memoryview(data), extension, side, quality) if extension in RESIZABLE else None
            except BadSample as error:
                error.object, error.stage = ref.url, "pack"
                error.hint = "remove the object from the source, or pack without --resize"
                raise
            yield data if small is None else small
