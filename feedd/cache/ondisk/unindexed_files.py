"""Files found at the start but not listed in the journal; they are examined while the cache already serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from feedd.cache import entry_layout
from feedd.errors import CacheUnavailable
from feedd.metrics import CACHE_EVICTIONS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from feedd.cache.cache_metrics import CacheMetrics
    from feedd.cache.entry_storage import EntryStorage, UnindexedFile
    from feedd.cache.policy.cache_index import CacheIndex, TooLarge
    from feedd.values import ObjectRef

_BATCH: Final = 256  # files at a time: changes of the directory wait for at most one batch
_log = structlog.get_logger(__name__)


class Examination:
    """Examines unlisted files and indexes the whole ones; until then the index leaves their space free.

    Attributes:
        left_bytes: disk bytes of the files not examined yet.
        limit_bytes: the index's limit once all files are examined.
    """

    def __init__(
        self, place: EntryStorage, index: CacheIndex, metrics: CacheMetrics, unindexed: Sequence[UnindexedFile]
    ) -> None:
        self._storage = place
        self._index = index
        self._cache_metrics = metrics
        self._unindexed = unindexed
        self._task: asyncio.Task[None] | None = None
        self.limit_bytes = index.limit_bytes
        self.left_bytes = sum(stray.disk_bytes for stray in unindexed)
        index.space.limit_bytes -= self.left_bytes

    def start(self, group: asyncio.TaskGroup, changed: Callable[[], None]) -> None:
        """Start examining; ``changed`` is called whenever there may be more room."""
        if self._unindexed:
            self._task = group.create_task(self._run(changed))

    def close(self) -> None:
        """Stop; the remaining files are examined after the next start."""
        if self._task is not None:
            self._task.cancel()

    def too_large(self, refs: Sequence[ObjectRef]) -> TooLarge | None:
        """Return why even an empty cache cannot hold ``refs`` together once all files are examined, or None."""
        room = self._index.space
        room.limit_bytes, held_bytes = self.limit_bytes, room.limit_bytes
        try:
            return room.too_large(refs)
        finally:
            room.limit_bytes = held_bytes

    async def _run(self, changed: Callable[[], None]) -> None:
        for start in range(0, len(self._unindexed), _BATCH):
            batch = self._unindexed[start : start + _BATCH]
            try:
                refs = await self._storage.identify(batch)
            except CacheUnavailable as error:
                self._cache_metrics.error("disk")
                _log.warning("cache files not examined", count=len(batch), error=str(error))
                refs = []
            self._enter(batch, refs)
            changed()

    def _enter(self, batch: Sequence[UnindexedFile], refs: Sequence[ObjectRef]) -> None:
        batch_bytes = sum(stray.disk_bytes for stray in batch)
        self.left_bytes -= batch_bytes
        self._index.space.limit_bytes += batch_bytes
        self._cache_metrics.error("broken", len(batch) - len(refs))
        unknown = [(ref, entry_layout.disk_bytes(ref)) for ref in refs if self._index.find(ref) is None]
        unwanted = self._index.adopt_all(unknown)
        self._storage.remove(unwanted)
        self._cache_metrics.count(CACHE_EVICTIONS, len(unwanted))
