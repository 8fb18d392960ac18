"""Where entries lie: the seam between the cache's decisions and a directory, or memory."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from feedd.cache.blocks import BlockSums
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.flow.mapping import FileMapping
    from feedd.values import ObjectRef, ShardFile


class Depth(enum.IntEnum):
    """How closely an entry is looked at."""

    LENGTH = 1
    HEADER = 2
    BLOCKS = 3


class Finding(enum.Enum):
    """What a look at an entry found; the values of all but WHOLE are reasons in the metric of errors."""

    WHOLE = "whole"
    VANISHED = "vanished"
    TORN = "torn"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Names:
    """A place in messages.

    Attributes:
        where: the directory's path, or ``memory``.
        space: what runs out there.
        free_hint: what to do where it ran out although the cache is not full.
        grow_hint: what to do where the cache is too small.
    """

    where: str
    space: str
    free_hint: str
    grow_hint: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A file that may be an entry; not examined yet.

    Attributes:
        path: the file.
        disk_bytes: what it takes on disk.
        written_s: when it was last written, seconds since the Unix epoch.
    """

    path: Path
    disk_bytes: int
    written_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A place that is ours.

    Attributes:
        index: with every entry known to be there.
        strays: to be examined while the cache already serves, oldest first. Their bytes fit into the index's limit.
        broken_count: entries and unfinished fills removed.
        evicted_count: entries removed because the limit is smaller now.
    """

    index: CacheIndex
    strays: tuple[Stray, ...] = ()
    broken_count: int = 0
    evicted_count: int = 0


@dataclass(slots=True, eq=False)
class Draft:
    """An entry being filled: allocated, mapped, without a name.

    Attributes:
        mapping: header and data.
        temp: its file in a directory.
        fd: its descriptor in memory.
        published: its publication was handed over.
    """

    ref: ObjectRef
    mapping: FileMapping
    temp: Path | None = None
    fd: int = -1
    published: bool = False


class EntryStorage(Protocol):
    """Keeps entries, no books. What is handed over in turn (create, publish, abandon, remove) is done in that order.

    Used on one event loop; all work on files is done in threads.
    """

    @property
    def names(self) -> Names:
        """For messages."""

    @property
    def shared(self) -> bool:
        """Whether an entry may change behind our back: others reach it, or it survives us."""

    async def open(self, failed: Callable[[BaseException], None]) -> Opened:
        """Take the place over; ``failed`` hears of work that nobody waits for.

        Raises:
            CacheUnavailable: it cannot be used. Nothing is held then.
        """

    def file(self, ref: ObjectRef) -> ShardFile:
        """Return how to open a published entry; valid until it is removed."""

    async def create(self, ref: ObjectRef) -> Draft:
        """Allocate; cancelled, the draft is abandoned.

        Raises:
            PlaceFull: no room.
            CacheUnavailable: refused for another reason.
        """

    async def publish(self, draft: Draft, sums: BlockSums) -> None:
        """Make a filled draft an entry; failed or cancelled, it still has to be abandoned.

        Raises:
            CacheUnavailable: refused.
        """

    def abandon(self, draft: Draft) -> None:
        """Free a draft, published or not."""

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Hand the removal of entries over; done before anything created later is allocated."""

    def evict(self, refs: Iterable[ObjectRef]) -> None:
        """As ``remove``, where drafts created next may have the space, and what is in it."""

    async def look(self, refs: Sequence[ObjectRef], depth: Depth) -> list[Finding]:
        """Look at entries.

        Raises:
            CacheUnavailable: no answer in time, or this process is out of descriptors.
        """

    async def identify(self, strays: Sequence[Stray]) -> list[ObjectRef]:
        """Return which objects lie there whole; what is broken is removed."""

    async def close(self, entries: Sequence[ObjectRef], deadline_s: float) -> bool:
        """Let what was handed over finish and give the place up; ``entries`` stay, where entries can.

        Returns:
            Whether they would also survive a power cut.
        """
