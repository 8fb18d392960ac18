"""Reading the indexes of shards that are here before batches ask for them.

Where samples lie in a shard is known when somebody has gone through it: 5 us per sample of a tar. Asked for only when a
batch needs it, that waits behind all decoding that was asked for before, and then decoding waits for it. Nothing is
fetched for it: a shard that somebody awaits comes before others, and who awaits what is for batches to say.
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
    from feedd.converting.converting_cache import ConvertingCache
    from feedd.dataset.listing import Listing
    from feedd.values import ShardIndex


_PATIENCE_DRAWS = 8  # twice the batches that are usually under way: what is read for later is in nobody's way at first
_AT_ONCE = 2  # so many workers, at most, index for later
_LOOKED_AT = 64  # the first that are missing: a look is taken for each batch


class IndexPrefetcher:
    """Of one session. What fails here is no error: whoever cannot do without an index asks again."""

    def __init__(self, indexes: Indexes, listing: Listing, cache: ConvertingCache) -> None:
        """Begin nothing; ``indexes`` reads those of ``listing``, whose shards ``cache`` holds or brings."""
        self._indexes = indexes
        self._listing = listing
        self._cache = cache
        self._coming: list[int] = []  # shards whose indexes are not at hand
        self._patience = _PATIENCE_DRAWS
        self._begun: set[IndexRun] = set()
        self._ending: set[IndexRun] = set()  # nobody wants them any more; until they end they may hold pins

    def enter(self, shards: Iterable[int]) -> None:
        """As ``expect``; a stream or an epoch begins, whose first batches come before all this."""
        self._patience = _PATIENCE_DRAWS
        self.expect(shards)

    def expect(self, shards: Iterable[int]) -> None:
        """Read the indexes of these (dataset indices), and of no others, once ``look`` finds that they are here."""
        self._coming = [shard for shard in dict.fromkeys(shards) if self._indexes.held(self._listing, shard) is None]

    def look(self) -> None:
        """Begin with what has come; called once for each batch."""
        if self._patience:
            self._patience -= 1
        else:
            self._go_on()

    def close(self) -> None:
        """Want nothing any more; another stream may begin."""
        self._coming = []
        for run in tuple(self._begun):
            self._end(run)

    async def ended(self) -> None:
        """Return when nothing that was given up is under way."""
        if self._ending:
            await asyncio.wait([run.result for run in self._ending])

    def _go_on(self) -> None:
        holds, refs = self._cache.holds, self._listing.refs
        while len(self._begun) < _AT_ONCE:
            first = itertools.islice(self._coming, _LOOKED_AT)
            shard = next((one for one in first if holds(refs[one])), None)
            if shard is None:
                return
            self._coming.remove(shard)
            self._begin(shard)

    def _begin(self, shard: int) -> None:
        with contextlib.suppress(Draining):
            run = self._indexes.begin(self._listing, shard)
            if run is None:
                return
            if run in self._begun:  # of another stream, or a window that overlaps
                self._indexes.leave(run)
                return
            self._begun.add(run)

            def ended(result: asyncio.Future[ShardIndex]) -> None:
                self._ending.discard(run)
                self._end(run)
                if result.exception() is None and not self._patience:
                    self._go_on()

            run.result.add_done_callback(ended)

    def _end(self, run: IndexRun) -> None:
        if run in self._begun:
            self._begun.discard(run)
            if self._indexes.leave(run):
                self._ending.add(run)
