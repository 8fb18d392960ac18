"""A store with a limit on concurrent requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.fetch.pages import closing_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.protocols import ObjectStore
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress


class LimitStore:
    """Holds a permit for the whole life of a request, its body included; first come, first served."""

    def __init__(self, inner: ObjectStore, requests_max: int) -> None:
        if requests_max < 1:
            raise ValueError(f"expected room for at least one request, got {requests_max}")
        self._inner = inner
        self._permits = asyncio.Semaphore(requests_max)

    def __repr__(self) -> str:
        return f"LimitStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages; waiting for a page holds a permit, working on a page does not."""
        async with closing_pages(self._inner.list(prefix, start_after)) as pages:
            while True:
                async with self._permits:
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store once a permit is free."""
        async with self._permits:
            return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store once a permit is free; see ``ObjectStore.checksum``."""
        async with self._permits:
            return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store once a permit is free."""
        async with self._permits:
            await self._inner.read_into(ref, span, sink, progress)

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()
