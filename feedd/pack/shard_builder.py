"""Builds one shard from the frozen source: a pure function of the source and the number of the shard."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING

import numpy as np

from feedd.access import FILE_ROOT
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_names import shard_name
from feedd.errors import BadSample, NotFound, ObjectChanged
from feedd.fetch.local_store import read_files
from feedd.flow.pools import Pool
from feedd.flow.range_sinks import MemorySink
from feedd.pack.destination import ShardRecord
from feedd.pack.packed_sample import RESIZABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.catalog.sources import Sources
    from feedd.pack.destination import Destination
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
        threads: number of threads that read local files, resize images and compute digests.
    """

    def __init__(
        self, sources: Sources, target: Destination, frozen: FrozenSource, writer: ShardWriter, threads: int
    ) -> None:
        self._sources = sources
        self._target = target
        self._frozen = frozen
        self._writer = writer
        self._pool = Pool("pack", threads)
        self._free: list[NDArray[np.uint8]] = []  # fresh memory costs as much as reading a file into it

    async def build(self, shard: int) -> ShardRecord:
        """Write a shard, unless it is there already; return its record.

        Raises:
            ObjectChanged: an object is another version than the frozen one.
            NotFound, PermissionDenied, StoreUnavailable: the answer of a store.
            BadSample: the format cannot hold a sample, or an image cannot be resized.
        """
        name = shard_name(shard, self._writer.extension)
        found = await self._target.find(name, self._frozen.digest)
        if found is not None:
            return found
        refs = self._frozen.refs(shard)
        size_bytes = sum(ref.size_bytes for ref in refs)
        memory = self._memory(size_bytes)
        values = memory[:size_bytes].data
        try:
            if refs[0].root == FILE_ROOT:
                pieces, digest = await self._pool.run(self._read_and_write, shard, refs, values)
            else:
                await self._sources.fetcher.fetch_members(refs, MemorySink(values))
                pieces, digest = await self._pool.run(self._written, shard, refs, values)
            record = ShardRecord(self._frozen.digest, digest, sum(map(len, pieces)), self._frozen.samples_in(shard))
            written = await self._target.write_shard(name, pieces, record)
        except (ObjectChanged, NotFound) as error:
            error.hint = "the source has changed since the pack began: begin anew with another destination"
            raise
        self._free.append(memory)  # after an error a thread may still use the memory
        return written

    def close(self) -> None:
        """End the threads."""
        self._pool.close(wait=True)

    def _memory(self, size_bytes: int) -> NDArray[np.uint8]:
        free = self._free.pop() if self._free else np.empty(0, np.uint8)
        return free if len(free) >= size_bytes else np.empty(size_bytes + size_bytes // 8, np.uint8)

    def _read_and_write(self, shard: int, refs: Sequence[ObjectRef], values: memoryview) -> tuple[list[Piece], str]:
        read_files(refs, values)
        return self._written(shard, refs, values)

    def _written(self, shard: int, refs: Sequence[ObjectRef], values: memoryview) -> tuple[list[Piece], str]:
        """Return the pieces of a shard, and its digest."""
        ends = itertools.accumulate(ref.size_bytes for ref in refs)
        objects: list[Piece] = [values[low:high] for low, high in itertools.pairwise([0, *ends])]
        if self._frozen.options.resize is not None:
            objects = self._resized(refs, objects)
        samples = self._frozen.samples(shard, objects)
        pieces: list[Piece] = []
        digest = hashlib.sha256()
        for piece in self._writer.pieces(samples, self._frozen.fields):
            digest.update(piece)
            pieces.append(piece)
        return pieces, digest.hexdigest()

    def _resized(self, refs: Sequence[ObjectRef], objects: Sequence[Piece]) -> list[Piece]:
        """Return the objects, with images that are larger than wanted reduced."""
        from feedd.codecs.reduced_image import reduced  # noqa: PLC0415 - slow, and for this option only

        side, quality = self._frozen.options.resize, self._frozen.options.quality
        assert side is not None, "only called to resize"
        found: list[Piece] = []
        for ref, data in zip(refs, objects, strict=True):
            extension = split_name(ref.key)[1]
            try:
                small = reduced(memoryview(data), extension, side, quality) if extension in RESIZABLE else None
            except BadSample as error:
                error.object, error.stage = ref.url, "pack"
                error.hint = "remove the object from the source, or pack without --resize"
                raise
            found.append(data if small is None else small)
        return found
