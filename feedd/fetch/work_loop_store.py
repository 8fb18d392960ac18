"""A store whose requests run on another event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.fetch.pages import closing_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from feedd.flow.loop_thread import WorkLoop
    from feedd.protocols import ObjectStore
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress


class WorkLoopStore:
    """Sends the calls of one loop to a store that another loop owns.

    Args:
        root: root of the store.
        store_of: finds the store; called on the work loop.
        loop: the work loop.
    """

    def __init__(self, root: str, store_of: Callable[[str], ObjectStore], loop: WorkLoop) -> None:
        self.root = root
        self._store_of = store_of
        self._loop = loop

    def __repr__(self) -> str:
        return f"WorkLoopStore({self.root})"

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the store's pages; each is requested when it is wanted."""
        pages = _Pages(self._store_of, self.root, prefix, start_after)
        try:
            while (page := await self._loop.run(pages.next)) is not None:
                yield page
        finally:
            await self._loop.run(pages.close)

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the store."""
        return await self._loop.run(lambda: self._store_of(self.root).head(key))

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the store; see ``ObjectStore.checksum``."""
        return await self._loop.run(lambda: self._store_of(self.root).checksum(ref))

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the store."""
        await self._loop.run(lambda: self._store_of(self.root).read_into(ref, span, sink, progress))

    async def close(self) -> None:
        """Do nothing: the store belongs to the work loop."""


class _Pages:
    """A listing, used on the work loop."""

    def __init__(self, store_of: Callable[[str], ObjectStore], root: str, prefix: str, start_after: str) -> None:
        self._store_of = store_of
        self._wanted = root, prefix, start_after
        self._pages: AsyncGenerator[list[ObjectRef], None] | None = None

    async def next(self) -> list[ObjectRef] | None:
        """Return the next page; None: there are no more."""
        if self._pages is None:
            root, prefix, start_after = self._wanted
            self._pages = _generator(self._store_of(root), prefix, start_after)
        return await anext(self._pages, None)

    async def close(self) -> None:
        """Close the listing."""
        if self._pages is not None:
            await self._pages.aclose()


async def _generator(store: ObjectStore, prefix: str, start_after: str) -> AsyncGenerator[list[ObjectRef], None]:
    async with closing_pages(store.list(prefix, start_after)) as pages:
        async for page in pages:
            yield page
