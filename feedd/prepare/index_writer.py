"""The index file while it grows: others may be writing it, too, so what it holds is never just replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.dataset.index_file import INDEX_BYTES_MAX, merged, parse, render
from feedd.errors import NotFound, ObjectChanged, StoreUnavailable
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.catalog.sources import Sources
    from feedd.dataset.index_file import Row
    from feedd.values import ObjectRef

_TRIES = 100  # whoever is refused was overtaken by somebody who was not: so often, all of them are at it together


class KeptIndex:
    """One index, in a bucket or a file. Each version takes the place of the one it was made from, or is made again.

    Args:
        sources: read and write it.
        url: where it is.
    """

    def __init__(self, sources: Sources, url: str) -> None:
        self._sources = sources
        self._url = url
        self._ref: ObjectRef | None = None
        self._rows: list[Row] = []
        self._stale: frozenset[Row] = frozenset()

    @property
    def url(self) -> str:
        """Where it is."""
        return self._url

    def drop(self, stale: frozenset[Row]) -> None:
        """Take note of rows that were read and are of nothing that is still there: the next version lacks them."""
        self._stale = stale

    async def read(self) -> list[Row]:
        """Return its rows; none where there is none yet.

        Raises:
            ValueError: something else is there.
            ObjectChanged: it is being replaced right now.
            PermissionDenied, StoreUnavailable: as the store answered.
        """
        try:
            ref = await self._sources.head(self._url)
        except NotFound:
            self._ref, self._rows = None, []
            return self._rows
        if ref != self._ref:
            self._ref, self._rows = ref, []  # of this version even where it is no index: so it can be replaced
            if ref.size_bytes > INDEX_BYTES_MAX:
                raise ValueError(f"expected an index of at most {INDEX_BYTES_MAX} bytes, got {ref.size_bytes}")
            self._rows = await self._sources.texts.parse(ref, parse)
        return self._rows

    async def save(self, ours: Mapping[str, Row]) -> list[Row]:
        """Write what this run knows, with what others have written meanwhile; return what was new of that.

        Args:
            ours: rows by key.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: as the store answered.
        """
        for _ in range(_TRIES):
            try:
                there = await self._there()
                rows, news = await CPU.run(merged, ours, there, self._stale)
                if self._ref is None or rows != there:
                    over = self._ref.etag if self._ref is not None else ""
                    data = await CPU.run(render, rows)
                    self._ref, self._rows = await self._sources.put(self._url, data, over), rows
            except ObjectChanged:
                self._ref = None
                continue
            except NotFound:
                if self._ref is None:
                    raise
                self._ref = None  # removed meanwhile
                continue
            return news
        raise StoreUnavailable(
            f"expected to replace the version that was read, got another one {_TRIES} times", object=self._url
        )

    async def _there(self) -> list[Row]:
        try:
            return await self.read()
        except ValueError:  # said when it was opened, where that matters
            return []
