"""Reading the indexes of shards before they are asked for: of a session's first window at once, of the next when here.

Where samples lie in a shard is known when somebody has gone through it: 10 to 20 us per sample of a tar. Asked for only
when a batch needs it, that waits behind all decoding that was asked for before, and then decoding waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from feedd.errors import Draining

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.pipeline.dataset.indexes import Indexes, IndexRun
    from feedd.pipeline.derived.cache import MadeCache
    from feedd.plan.listing import Listing
    from feedd.values import ShardIndex


_PATIENCE_DRAWS = 8  # twice the batches that are usually under way: what is read for later is in nobody's way at first


class Foresight:
    """Of one session. What fails here is no error: whoever cannot do without an index asks again."""

    def __init__(self, indexes: Indexes, listing: Listing, cache: MadeCache) -> None:
        """Begin nothing; ``indexes`` reads those of ``listing``, whose shards ``cache`` holds or brings."""
        self._indexes = indexes
        self._listing = listing
        self._cache = cache
        self._coming: list[int] = []  # shards that are not here
        self._patience = _PATIENCE_DRAWS
        self._begun: set[IndexRun] = set()
        self._ending: set[IndexRun] = set()  # nobody wants them any more; until they end they may hold pins

    def need(self, shards: Iterable[int]) -> None:
        """Read the indexes of these (dataset indices), which are fetched for that where they are not here."""
        for shard in shards:
            self._begin(shard)

    def expect(self, shards: Iterable[int]) -> None:
        """Read the indexes of these, and of no others, once they are here; ``look`` finds that out."""
        self._coming = [shard for shard in shards if self._indexes.held(self._listing, shard) is None]

    def look(self) -> None:
        """Begin with what has come, but not before a stream's first batches; called once for each batch."""
        if self._patience:
            self._patience -= 1
        elif self._coming:
            here = [shard for shard in self._coming if self._cache.holds(self._listing.refs[shard])]
            self._coming = [shard for shard in self._coming if shard not in here]
            self.need(here)

    def close(self) -> None:
        """Want nothing any more; another stream may begin."""
        self._coming, self._patience = [], _PATIENCE_DRAWS
        for run in tuple(self._begun):
            self._end(run)

    async def ended(self) -> None:
        """Return when nothing that was given up is under way."""
        if self._ending:
            await asyncio.wait([run.result for run in self._ending])

    def _begin(self, shard: int) -> None:
        with contextlib.suppress(Draining):
            run = self._indexes.begin(self._listing, shard)
            if run is None:
                return
            self._begun.add(run)

            def ended(_: asyncio.Future[ShardIndex]) -> None:
                self._ending.discard(run)
                self._end(run)

            run.result.add_done_callback(ended)

    def _end(self, run: IndexRun) -> None:
        if run in self._begun:
            self._begun.discard(run)
            if self._indexes.leave(run):
                self._ending.add(run)
