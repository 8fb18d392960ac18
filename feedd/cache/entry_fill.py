"""One fill: space in a place, the object's bytes into it with their checksums, then its publication."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from feedd.cache import entry_layout, os_errors
from feedd.cache.blocks import BlockSums
from feedd.cache.os_errors import PlaceFull
from feedd.errors import FeeddError, StoreUnavailable
from feedd.flow.file_writing import left_alone
from feedd.flow.tasks import within
from feedd.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.cache.entry_storage import Draft, EntryStorage
    from feedd.protocols import ShardFetcher
    from feedd.values import ByteRange, ObjectRef


_WRITTEN_S: Final = 30.0
"""Longest wait for writes that nobody wants any more, of the slower of two requests: the disk hangs, then."""


class FillWatch:
    """What a fetch may know of the fill it is for: a ``FetchWatch``."""

    def __init__(self, urgency: Callable[[], float], sums: BlockSums | None) -> None:
        self._urgency = urgency
        self._sums = sums

    def urgency(self) -> float:
        """Position at which the object is needed; -inf: somebody waits for it now."""
        return self._urgency()

    def arrived(self, span: ByteRange, piece: memoryview) -> None:
        """Take the checksums of a part while it is hot."""
        if self._sums is not None:
            self._sums.take(span, piece)


class Filler:
    """Brings objects into a place; keeps no books.

    Attributes:
        place: where to.
    """

    def __init__(self, place: EntryStorage, fetcher: ShardFetcher, deadline_s: float) -> None:
        self.place = place
        self._fetcher = fetcher
        self._deadline_s = deadline_s

    async def fill(self, ref: ObjectRef, urgency: Callable[[], float], make_room: Callable[[PlaceFull], bool]) -> None:
        """Fetch ``ref`` into its place; cancelled or failed it leaves nothing.

        Args:
            ref: the object.
            urgency: position of the future at which it is needed, whenever asked.
            make_room: called when the place is full; hands evictions over, or says False.

        Raises:
            CacheUnavailable: the place cannot be written, or is full.
            StoreUnavailable: it took longer than its deadline.
            Whatever the fetcher raises, with the object's URL where it named none.
        """
        try:
            async with within(self._deadline_s, lambda: self._late(ref)):
                await self._fill(ref, urgency, make_room)
        except FeeddError as error:
            error.object = error.object or ref.url
            raise

    def _late(self, ref: ObjectRef) -> StoreUnavailable:
        return StoreUnavailable(
            f"expected {ref.size_bytes} bytes within {format_duration(self._deadline_s)}, got no end of them",
            object=ref.url,
            hint="raise the cache's fill deadline if the store is that slow",
            stage="cache",
        )

    async def _fill(self, ref: ObjectRef, urgency: Callable[[], float], make_room: Callable[[PlaceFull], bool]) -> None:
        draft = await self._create(ref, make_room)
        try:
            sums = BlockSums(ref.size_bytes, entry_layout.data_at(ref))
            if self.place.shared:
                draft.mapping.landed = sums.landed
            await self._fetch(draft, FillWatch(urgency, sums if self.place.shared else None))
            await self._left_alone(draft)
            await self.place.publish(draft, sums)
        except BaseException:
            self.place.abandon(draft)
            raise

    async def _left_alone(self, draft: Draft) -> None:
        """Wait until nobody writes any more: readers are given a file that does not change."""
        if not await left_alone(draft.mapping.writers, _WRITTEN_S):
            raise os_errors.stalled(self.place.names.where, _WRITTEN_S)

    async def _create(self, ref: ObjectRef, make_room: Callable[[PlaceFull], bool]) -> Draft:
        try:
            return await self.place.create(ref)
        except PlaceFull as full:
            if not make_room(full):
                raise os_errors.place_full(full, self.place.names) from full
        try:
            return await self.place.create(ref)
        except PlaceFull as full:
            raise os_errors.place_full(full, self.place.names) from full

    async def _fetch(self, draft: Draft, watch: FillWatch) -> None:
        ref = draft.ref
        if not ref.size_bytes:
            return  # no range of an empty object can be asked for
        start = entry_layout.data_at(ref)
        target = memoryview(draft.mapping)[start : start + ref.size_bytes]
        try:
            await self._fetcher.fetch(ref, target, watch)
        finally:
            # a failed fetch's traceback may still hold arrays over it; they end with the traceback
            with contextlib.suppress(BufferError):
                target.release()
