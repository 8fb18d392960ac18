"""Reads the indexes of shards in the cache before batches need them.

Indexing a tar takes 5 us per sample. If the index is requested only when a batch needs it, it waits behind all earlier
decoding, and then the batch's decoding waits for it. No shard is fetched for this, because fetching for batches comes
first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from feedd.errors import Draining

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.catalog.index_store import Indexes, IndexRun
    from feedd.dataset.listing import DatasetView
    from feedd.shard_index import ShardIndex
    from feedd.tables.cache import ConvertingCache


_PATIENCE_DRAWS = 8  # twice the usual number of batches in progress: at first, reading for later must not disturb them
_AT_ONCE = 2  # workers that may index for later at one time
_LOOKED_AT = 64  # missing shards to check, because this runs for every batch


class IndexPrefetcher:
    """Prefetches the indexes of one session. Failures are ignored: a batch that needs an index requests it again."""

    def __init__(self, indexes: Indexes, view: DatasetView, cache: ConvertingCache) -> None:
        """Start nothing yet; ``indexes`` reads the indexes of ``view``, whose shards ``cache`` holds."""
        self._indexes = indexes
        self._view = view
        self._cache = cache
        self._missing: list[int] = []  # shards whose indexes are missing
        self._patience = _PATIENCE_DRAWS
        self._started: set[IndexRun] = set()
        self._ending: set[IndexRun] = set()  # cancelled runs, which may hold pins until they end

    def enter(self, shards: Iterable[int]) -> None:
        """Like ``expect``, but for a new stream or epoch, whose first batches have priority."""
        self._patience = _PATIENCE_DRAWS
        self.expect(shards)

    def expect(self, shards: Iterable[int]) -> None:
        """Replace the dataset indices of shards whose indexes to read once ``look`` finds the shards in the cache."""
        self._missing = [shard for shard in dict.fromkeys(shards) if self._indexes.cached(self._view, shard) is None]

    def look(self) -> None:
        """Start indexing shards that have arrived; called once for each batch."""
        if self._patience:
            self._patience -= 1
        else:
            self._go_on()

    def close(self) -> None:
        """Cancel all prefetching; another stream may begin."""
        self._missing = []
        for run in tuple(self._started):
            self._end(run)

    async def ended(self) -> None:
        """Return when all cancelled runs have ended."""
        if self._ending:
            await asyncio.wait([run.result for run in self._ending])

    def _go_on(self) -> None:
        holds, refs = self._cache.holds, self._view.refs
        while len(self._started) < _AT_ONCE:
            first = itertools.islice(self._missing, _LOOKED_AT)
            shard = next((one for one in first if holds(refs[one])), None)
            if shard is None:
                return
            self._missing.remove(shard)
            self._begin(shard)

    def _begin(self, shard: int) -> None:
        with contextlib.suppress(Draining):
            run = self._indexes.begin(self._view, shard)
            if run is None:
                return
            if run in self._started:  # it was begun by another stream, or for an overlapping window
                self._indexes.leave(run)
                return
            self._started.add(run)

            def ended(result: asyncio.Future[ShardIndex]) -> None:
                self._ending.discard(run)
                self._end(run)
                if result.exception() is None and not self._patience:
                    self._go_on()

            run.result.add_done_callback(ended)

    def _end(self, run: IndexRun) -> None:
        if run in self._started:
            self._started.discard(run)
            if self._indexes.leave(run):
                self._ending.add(run)
