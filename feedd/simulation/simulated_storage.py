"""A storage of cache entries that keeps no bytes, so that the real cache index decides over any size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from feedd.cache import entry_layout
from feedd.cache.index import CacheIndex
from feedd.cache.storage import Draft, Finding, Names, Opened
from feedd.flow.sink_file import SinkFile
from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.cache.block_sums import BlockSums
    from feedd.cache.storage import Depth, UnindexedFile
    from feedd.values import ObjectRef

_NAMES: Final = Names(
    where="the simulated cache", space="cache", free_hint="raise --cache-size", grow_hint="raise --cache-size"
)


class SimulatedStorage:
    """An ``EntryStorage`` of a given size, in which every entry is whole at once."""

    names: Final = _NAMES
    shared: Final = False

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    async def open(self, failed: Callable[[BaseException], None]) -> Opened:
        """Start empty."""
        del failed
        fd = os.memfd_create("feedd-simulated", os.MFD_CLOEXEC)  # stays empty
        try:
            self._file = SinkFile(fd)
        finally:
            os.close(fd)
        return Opened(CacheIndex(self._size_bytes))

    async def open_files(self, refs: Sequence[ObjectRef]) -> list[ShardFile | Finding]:
        """Return files that have no bytes."""
        return [ShardFile(ref, os.devnull, entry_layout.data_at(ref)) for ref in refs]

    async def create(self, ref: ObjectRef) -> Draft:
        """Return a draft; all drafts share one empty file."""
        return Draft(ref, self._file)

    async def publish(self, draft: Draft, sums: BlockSums) -> None:
        """Mark the draft as published."""
        del sums
        draft.published = True

    def abandon(self, draft: Draft) -> None:
        """Do nothing: a draft has no space of its own."""

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Do nothing: the index counts the space."""

    def evict(self, refs: Iterable[ObjectRef]) -> None:
        """Do nothing: the index counts the space."""

    async def look(self, refs: Sequence[ObjectRef], depth: Depth) -> list[Finding]:
        """Find every entry whole."""
        del depth
        return [Finding.WHOLE] * len(refs)

    async def identify(self, unindexed: Sequence[UnindexedFile]) -> list[ObjectRef]:
        """Find nothing: the storage starts empty."""
        assert not unindexed, "a simulated storage starts empty"
        return []

    async def close(self, entries: Sequence[ObjectRef], deadline_s: float) -> bool:
        """Close the file."""
        del entries, deadline_s
        self._file.close()
        return True
