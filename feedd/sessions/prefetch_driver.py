"""Tells the cache which shards each session needs next, and when each shard is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from feedd.ordering.next_use import NextUseTimeline
from feedd.ordering.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.catalog.index_prefetcher import IndexPrefetcher
    from feedd.dataset.listing import DatasetView
    from feedd.ordering.epoch_access import EpochAccess
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.protocols import ShardCache
    from feedd.values import Cursor

_SLACK = 1 / 16  # of an epoch's bytes; a stream that falls further behind has its uses compared anew
_DEFERRED_S: Final = 1.0  # longest time for which a new stream leaves later shards alone
_MANY = 4_000  # shards or windows; for more of them, the cache looks at its own entries


class ReaderGroups:
    """Groups of readers that read the same epoch of the same assignment. A group is as far as its slowest reader.

    Attributes:
        timeline: has a stream per group, so that groups in different epochs or datasets can be compared.
        readahead_bytes: see ``EpochAccess.wishes``.
    """

    def __init__(self, readahead_bytes: int = 0) -> None:
        self.readahead_bytes = readahead_bytes
        self.timeline = NextUseTimeline()
        self._groups: dict[tuple[object, ...], Progress] = {}

    def group(self, key: tuple[object, ...]) -> Progress | None:
        """Return the group of that key, or None if it has no readers."""
        return self._groups.get(key)

    def found(self, key: tuple[object, ...]) -> Progress:
        """Make and return a new group."""
        group = self._groups[key] = Progress()
        return group

    def leave(self, key: tuple[object, ...], name: str) -> range | None:
        """Remove a reader; return the windows that all readers have now left, or None if the group has ended."""
        group = self._groups[key]
        left = group.leave(name)
        if group.reader_count:
            return left
        del self._groups[key]
        return None


class PrefetchDriver:
    """Reports one session's future reads to the cache.

    A new stream prefetches only the shards of its first window, until its first batch is made or a second has passed.
    Fetches of later shards take cores from the transfer of the first shards and from the first batch's decoding.
    """

    def __init__(
        self,
        name: str,
        view: DatasetView,
        reader: AnyReader,
        cache: ShardCache,
        reader_groups: ReaderGroups,
        index_prefetcher: IndexPrefetcher | None = None,
    ) -> None:
        """Create a driver for a session; ``index_prefetcher`` reads indexes in advance, if given."""
        self._name = name
        self._view = view
        self._reader = reader
        self._cache = cache
        self._reader_groups = reader_groups
        self._index_prefetcher = index_prefetcher
        self._access: EpochAccess | None = None
        self._progress = Progress()
        self._window = -1
        self._making: dict[object, tuple[int, int]] = {}  # epoch and first window of running calls, in order
        self._widening: asyncio.TimerHandle | None = None  # ends the wait of a new stream's later shards

    def begin(self, at: Cursor) -> None:
        """Start a stream at a cursor, as ``enter`` does, but prefetch only its first window until ``widen``."""
        if self._widening is None:
            self._widening = asyncio.get_running_loop().call_later(_DEFERRED_S, self.widen)
        self.enter(at)

    def widen(self) -> None:
        """Prefetch later windows too, from now on."""
        if self._widening is None:
            return
        self._widening.cancel()
        self._widening = None
        if self._access is not None:
            self._wish(self._access, self._needed_from(self._access))

    def enter(self, at: Cursor) -> None:
        """Start or resume an epoch at a cursor: report when each shard is needed, and prefetch the first ones."""
        before, window = self._access, self._reader.window(at)
        access: EpochAccess = self._reader.access_at(self._view, at)
        if before is not None and before.key == access.key:
            access = before
        self._access, self._window = access, window
        group = self._reader_groups.group(access.key)
        if group is None:
            group = self._found(access, window)
        self._progress = group
        again = group.join(self._name, window)
        if again:
            self._reader_groups.timeline.need_from(access.key, again.start)
            self._ended_in(access, again)
        if before is not None and before is not access:
            self._leave(before)
        self._wish(access, window)
        if self._index_prefetcher is not None:
            self._index_prefetcher.enter(_soon(access, window))

    def skip_to(self, at: Cursor) -> None:
        """Resume at a later step than expected: cancel prefetches first, so that they delay nothing."""
        self._cache.prefetch([], self._name)
        if self._index_prefetcher is not None:
            self._index_prefetcher.close()
        self.begin(at)

    def advance(self, at: Cursor, first_window: int, last_window: int, call: object) -> None:
        """Report that a batch of these windows is being made.

        Many batches are made at one time. The shards of a window are needed until the last batch of it is made.

        Args:
            at: the step.
            first_window: the first window that the batch needs.
            last_window: the last window that the batch needs.
            call: the call that makes the batch, until ``finished``.
        """
        if self._access is None or at.epoch != self._access.epoch:
            self.enter(at)
        access = self._access
        assert access is not None
        self._making.setdefault(call, (at.epoch, first_window))
        self._left(access, self._progress.advance(self._name, self._needed_from(access)))
        if last_window > self._window:
            self._window = last_window
            timeline = self._reader_groups.timeline
            if timeline.advance(access.key, access.position(first_window)):
                self._cache.note_next_use(timeline.times)
            if self._index_prefetcher is not None:
                self._index_prefetcher.expect(_soon(access, last_window))
            self._wish(access, self._needed_from(access))  # never empty: that would cancel what batches wait for
        if self._index_prefetcher is not None:
            self._index_prefetcher.look()

    def finished(self, call: object) -> None:
        """Report that a call has made its batches, or has failed."""
        if self._making.pop(call, None) is not None and self._access is not None and self._making:
            self._left(self._access, self._progress.advance(self._name, self._needed_from(self._access)))

    def reads_only(self, window: int) -> bool:
        """Whether no running call needs an earlier window."""
        return self._access is None or self._needed_from(self._access) >= window

    def _needed_from(self, access: EpochAccess) -> int:
        """Return the first window that a running call needs; without calls, the latest window."""
        running = (window for epoch, window in self._making.values() if epoch == access.epoch)
        return next(running, self._window)  # calls are in the order of their steps, so the oldest needs most

    def close(self) -> None:
        """Cancel prefetches; shards that no other reader needs then have no next use."""
        if self._widening is not None:
            self._widening.cancel()
            self._widening = None
        self._cache.prefetch([], self._name)
        if self._index_prefetcher is not None:
            self._index_prefetcher.close()
        if self._access is not None:
            self._leave(self._access)
            self._access = None

    async def ended(self) -> None:
        """Wait until all reads that ran before ``close`` have ended."""
        if self._index_prefetcher is not None:
            await self._index_prefetcher.ended()

    def _found(self, access: EpochAccess, window: int) -> Progress:
        """Start a group whose stream is at ``window``."""
        timeline = self._reader_groups.timeline
        timeline.open(access.key, access, window, access.position(window), access.epoch_bytes * _SLACK)
        self._changed(access)
        return self._reader_groups.found(access.key)

    def _leave(self, access: EpochAccess) -> None:
        left = self._reader_groups.leave(access.key, self._name)
        if left is None:
            self._reader_groups.timeline.close(access.key)
            self._changed(access)
            return
        self._left(access, left)

    def _left(self, access: EpochAccess, windows: range) -> None:
        """Report that no reader needs these windows any more."""
        if windows:
            self._reader_groups.timeline.need_from(access.key, windows.stop)
            self._ended_in(access, windows)

    def _ended_in(self, access: EpochAccess, windows: range) -> None:
        """Report that the shards that end with these windows have other next uses."""
        if len(windows) > _MANY:
            self._note(None)
            return
        self._note(list(dict.fromkeys(shard for window in windows for shard in access.ending(window))))

    def _changed(self, access: EpochAccess) -> None:
        """Report that all shards of the node have other next uses."""
        many = len(access.assigned) > _MANY
        self._note(None if many else access.assigned.tolist())

    def _note(self, shards: list[int] | None) -> None:
        refs = None if shards is None else [self._view.refs[shard] for shard in shards]
        self._cache.note_next_use(self._reader_groups.timeline.times, refs)

    def _wish(self, access: EpochAccess, window: int) -> None:
        shards = (
            access.wishes(window, self._reader_groups.readahead_bytes)
            if self._widening is None
            else access.needed(window)
        )
        self._cache.prefetch([self._view.refs[shard] for shard in shards], self._name)


class RunningCalls:
    """The calls of one session that make batches, in the order of their steps.

    Args:
        prefetch_driver: knows the windows that the calls read.
    """

    def __init__(self, prefetch_driver: PrefetchDriver) -> None:
        self._prefetch_driver = prefetch_driver
        self._pinned: dict[object, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._pinned)

    def begin(self, call: object) -> None:
        """Add a call."""
        self._pinned[call] = asyncio.Event()

    def pinned(self, call: object) -> None:
        """Report that all shards of a call are pinned."""
        self._pinned[call].set()

    def end(self, call: object) -> None:
        """Remove a call."""
        self._pinned.pop(call).set()

    async def wait_for_earlier(self, call: object, window: int, lacks_shards: Callable[[], bool]) -> None:
        """Wait for earlier calls, if this call reads a later window than they do and would have to fetch shards itself.

        In a cache with little room, it would evict shards that an earlier call is about to read. The shards of this
        call are prefetched meanwhile, as far as there is room.

        Args:
            call: the call that waits.
            window: the last window that it reads.
            lacks_shards: whether the cache neither holds all of its shards nor fetches them.
        """
        if self._prefetch_driver.reads_only(window) or not lacks_shards():
            return
        for earlier, pinned in tuple(self._pinned.items()):
            if earlier is call:
                break
            await pinned.wait()


def _soon(access: EpochAccess, window: int) -> list[int]:
    """Return the shards of a window and of the next one."""
    return access.needed(window) + access.needed(window + 1)
