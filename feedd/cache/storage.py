"""Where entries are stored: the seam between the cache's decisions and a directory or memory."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from feedd.cache.block_sums import BlockSums
    from feedd.cache.index import CacheIndex
    from feedd.flow.sink_file import SinkFile
    from feedd.values import ObjectRef, ShardFile


class Depth(enum.IntEnum):
    """How closely an entry is verified."""

    LENGTH = 1
    HEADER = 2
    BLOCKS = 3


class Finding(enum.Enum):
    """The result of verifying an entry; all values but WHOLE are reasons of the error metric."""

    WHOLE = "whole"
    VANISHED = "vanished"
    TORN = "torn"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Names:
    """Words that describe a storage in messages.

    Attributes:
        where: the directory's path, or ``memory``.
        space: name of the resource that runs out.
        free_hint: what to do if the space ran out although the cache is below its limit.
        grow_hint: what to do if the cache is too small.
    """

    where: str
    space: str
    free_hint: str
    grow_hint: str


@dataclass(frozen=True, slots=True)
class UnindexedFile:
    """A file that may be an entry; not examined yet.

    Attributes:
        path: the file.
        disk_bytes: disk bytes of the file.
        written_s: time of the last write, seconds since the Unix epoch.
    """

    path: Path
    disk_bytes: int
    written_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened storage.

    Attributes:
        index: holds every known entry.
        unindexed: files to examine while the cache already serves, oldest first. Their bytes fit into the limit.
        broken_count: removed entries and unfinished fills.
        evicted_count: entries removed because the limit is smaller now.
    """

    index: CacheIndex
    unindexed: tuple[UnindexedFile, ...] = ()
    broken_count: int = 0
    evicted_count: int = 0


@dataclass(slots=True, eq=False)
class Draft:
    """An entry being filled: allocated, without a name.

    Attributes:
        file: holds header and data.
        temp: the file's path, in a directory.
        fd: the file descriptor, in memory.
        published: the publication was handed over.
    """

    ref: ObjectRef
    file: SinkFile
    temp: Path | None = None
    fd: int = -1
    published: bool = False


class EntryStorage(Protocol):
    """Stores entries and keeps no index. Calls of create, publish, abandon and remove take effect in their order.

    Used on one event loop; all file work is done in threads.
    """

    @property
    def names(self) -> Names:
        """Words that describe this storage in messages."""

    @property
    def shared(self) -> bool:
        """Whether an entry may change without this process: others can reach it, or it outlives the process."""

    async def open(self, failed: Callable[[BaseException], None]) -> Opened:
        """Open the storage; ``failed`` is called with errors of work that no caller waits for.

        Raises:
            CacheUnavailable: the storage cannot be used; nothing is held then.
        """

    async def open_files(self, refs: Sequence[ObjectRef]) -> list[ShardFile | Finding]:
        """Return the open files of published entries, or why a file cannot be opened; valid until they are removed.

        Raises:
            CacheUnavailable: the disk did not answer in time, or this process is out of descriptors.
        """

    async def create(self, ref: ObjectRef) -> Draft:
        """Allocate a draft; if the call is cancelled, the draft is abandoned.

        Raises:
            StorageFull: there is no room.
            CacheUnavailable: the storage refused for another reason.
        """

    async def publish(self, draft: Draft, sums: BlockSums) -> None:
        """Make a filled draft an entry; after a failure or cancellation the caller still has to abandon the draft.

        Raises:
            CacheUnavailable: the storage refused.
        """

    def abandon(self, draft: Draft) -> None:
        """Free a draft, published or not."""

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Hand over the removal of entries; it takes effect before anything created later is allocated."""

    def evict(self, refs: Iterable[ObjectRef]) -> None:
        """Remove entries like ``remove``; the next drafts may reuse their space and pages."""

    async def look(self, refs: Sequence[ObjectRef], depth: Depth) -> list[Finding]:
        """Verify entries.

        Raises:
            CacheUnavailable: the disk did not answer in time, or this process is out of descriptors.
        """

    async def identify(self, unindexed: Sequence[UnindexedFile]) -> list[ObjectRef]:
        """Return the objects that the examined files hold whole; broken files are removed."""

    async def close(self, entries: Sequence[ObjectRef], deadline_s: float) -> bool:
        """Finish the work handed over and close the storage; ``entries`` stay if the storage can keep them.

        Returns:
            Whether the entries would also survive a power cut.
        """
