"""Shards that are not in the cache yet: converted in memory, or what they will be converted from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.converting.memory_file import MemoryFile
from feedd.metrics import PIPELINE_MAKING
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.converting.object_ranges import FetchedRanges
    from feedd.protocols import Recorder
    from feedd.values import ObjectRef

_COUNT_MAX: Final = 8  # or more, as long as all together are small
SMALL_BYTES: Final = 64 * MIB
"""Bytes of all shards together, below which more of them may be in memory."""


@dataclass(slots=True)
class FreshShard:
    """One shard.

    Attributes:
        file: the shard, or ranges of its object.
        size_bytes: size of the shard.
    """

    file: MemoryFile | FetchedRanges
    size_bytes: int


class FreshShards:
    """The shards in memory, the oldest first. They own their memory.

    Args:
        recorder: measures the memory.

    Attributes:
        on_free: called when the memory of a shard is free.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._shards: dict[ObjectRef, FreshShard] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, shard: ObjectRef) -> bool:
        return shard in self._shards

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(fresh.size_bytes for fresh in self._shards.values())

    def put(self, shard: ObjectRef, file: MemoryFile | FetchedRanges) -> None:
        """Keep a shard, and own ``file``; an earlier one of the same name is freed."""
        self.drop(shard)
        if isinstance(file, MemoryFile):
            self._recorder.move(PIPELINE_MAKING, shard.size_bytes)
        self._shards[shard] = FreshShard(file, shard.size_bytes)

    def take(self, shard: ObjectRef) -> FreshShard | None:
        """Return a shard, which the caller frees; None: it is not in memory."""
        return self._shards.pop(shard, None)

    def free(self, fresh: FreshShard) -> None:
        """Free the memory of a shard that was taken."""
        if isinstance(fresh.file, MemoryFile):
            self._recorder.move(PIPELINE_MAKING, -fresh.size_bytes)
        fresh.file.close()
        self.on_free()

    def drop(self, shard: ObjectRef) -> None:
        """Free the memory of a shard, if it is in memory."""
        fresh = self.take(shard)
        if fresh is not None:
            self.free(fresh)

    def drop_oldest(self) -> None:
        """Free the memory of the shard that has been in memory for longest."""
        self.drop(next(iter(self._shards)))

    def make_room(self) -> None:
        """Drop the oldest shards until another one may come."""
        while len(self) >= _COUNT_MAX and self.size_bytes >= SMALL_BYTES:
            self.drop_oldest()

    def keep_only(self, wanted: Callable[[ObjectRef], bool]) -> None:
        """Free the memory of shards that are not wanted any more."""
        for shard in [one for one in self._shards if not wanted(one)]:
            self.drop(shard)
