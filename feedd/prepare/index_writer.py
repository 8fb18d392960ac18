"""Reads and writes an index file that other runs may write at the same time, without losing their rows."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from feedd.access import EVERYTHING
from feedd.dataset.index_file import INDEX_BYTES_MAX, merged, parse, render
from feedd.errors import NotFound, ObjectChanged, StoreUnavailable
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.catalog.sources import Sources
    from feedd.dataset.index_file import Row
    from feedd.values import ObjectRef

_TRIES = 100  # each refusal means that another run has saved meanwhile: this many runs would have to save at once

_PAUSE_S: Final = 0.01
_PAUSE_S_MAX: Final = 5.0


class IndexTarget:
    """One index, in a bucket or a file. A version replaces only the version that it was made from; else it is remade.

    Args:
        sources: reads and writes the index.
        url: URL of the index.
    """

    def __init__(self, sources: Sources, url: str) -> None:
        self._sources = sources
        self._url = url
        self._ref: ObjectRef | None = None
        self._rows: list[Row] = []
        self._stale: frozenset[Row] = frozenset()

    @property
    def url(self) -> str:
        """URL of the index."""
        return self._url

    def drop(self, stale: frozenset[Row]) -> None:
        """Record rows whose objects no longer exist; the next version leaves them out."""
        self._stale = stale

    async def read(self) -> list[Row]:
        """Return the rows of the index; an empty list if there is no index yet.

        Raises:
            ValueError: the file is not an index.
            ObjectChanged: another run is replacing the index now.
            PermissionDenied, StoreUnavailable: the store's answer.
        """
        try:
            ref = await self._sources.head(self._url, EVERYTHING)
        except NotFound:
            self._ref, self._rows = None, []
            return self._rows
        if ref != self._ref:
            self._ref, self._rows = ref, []  # set even if the file is no index, so that it can be replaced
            if ref.size_bytes > INDEX_BYTES_MAX:
                raise ValueError(f"expected an index of at most {INDEX_BYTES_MAX} bytes, got {ref.size_bytes}")
            self._rows = await self._sources.texts.parse(ref, parse)
        return self._rows

    async def save(self, ours: Mapping[str, Row]) -> list[Row]:
        """Write this run's rows, merged with rows that others have written meanwhile; return their new rows.

        Args:
            ours: rows by key.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: the store's answer.
        """
        for number in range(_TRIES):
            if number:  # many runs may save at once
                await asyncio.sleep(random.uniform(0, min(_PAUSE_S_MAX, _PAUSE_S * 2**number)))  # noqa: S311 - no secret
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
                self._ref = None  # the index was removed meanwhile
                continue
            return news
        raise StoreUnavailable(
            f"expected to replace the version that was read, got a newer version {_TRIES} times", object=self._url
        )

    async def _there(self) -> list[Row]:
        try:
            return await self.read()
        except ValueError:  # ``Counter.open`` reports this if it matters
            return []
