"""Packs: one cache entry of many objects, each fetched to its place in it, as parts of one object would be."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from feedd.errors import ObjectChanged
from feedd.plan.objects.layout import is_pack
from feedd.source.hints import CHANGED_HINT
from feedd.source.verified import Arrivals
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.errors import FeeddError
    from feedd.plan.objects.packs import Packs
    from feedd.protocols import FetchWatch
    from feedd.source.ranged import RangeFetcher
    from feedd.values import ObjectRef


_LOST_SHARE: Final = 16  # of the objects of a pack, one in so many may be lost
_log = structlog.get_logger(__name__)


class PackBook:
    """What is in each pack of the listings that somebody holds."""

    def __init__(self) -> None:
        self._listed: weakref.WeakSet[Packs] = weakref.WeakSet()

    def note(self, packs: Packs) -> None:
        """Know them as long as somebody else holds them."""
        self._listed.add(packs)

    def find(self, ref: ObjectRef) -> tuple[Packs, int]:
        """Return who knows a pack, and its number there.

        Raises:
            ObjectChanged: it is of no listing that is still held.
        """
        for packs in self._listed:
            number = packs.find(ref)
            if number is not None:
                return packs, number
        message = "expected a pack of a listing that is in use, got another"
        raise ObjectChanged(message, object=ref.url, hint=CHANGED_HINT, stage="source")


class ObjectsFetcher:
    """A ``SpanFetcher`` of objects and of packs, which all stand in one line.

    The objects of a pack are held against length and ETag, not against checksums: asking for those would be one request
    more for each.

    Args:
        plain: fetches objects.
        book: knows the packs.
    """

    def __init__(self, plain: RangeFetcher, book: PackBook) -> None:
        self._plain = plain
        self._book = book

    def __repr__(self) -> str:
        return f"ObjectsFetcher({self._plain!r})"

    async def fetch(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None = None) -> None:
        """Fill ``target``; see ``ShardFetcher.fetch``. Errors of a pack name the object they are about.

        Objects that are gone, or may not be read, are marked as lost in the pack's table where they are few: those who
        read the pack then have bad samples. Of many, or all, the first one is the error.
        """
        if not is_pack(ref):
            await self._plain.fetch(ref, target, watch)
            return
        assert target.nbytes == ref.size_bytes, "the target must be exactly as long as the pack"
        arrivals = _PackArrivals(ref, target, watch, *self._book.find(ref))
        await self._plain.fetch_to(arrivals, arrivals.begin())
        arrivals.finish()

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], target: memoryview, watch: FetchWatch | None = None
    ) -> None:
        """Fill parts of an object; see ``SpanFetcher.fetch_spans``."""
        await self._plain.fetch_spans(ref, spans, target, watch)


class _PackArrivals(Arrivals):
    """A pack on its way in."""

    many = True

    def __init__(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None, packs: Packs, number: int) -> None:
        super().__init__(ref, target, watch)
        self._members = packs.members
        self._first = packs.span(number).start
        self._table = packs.table(number)
        self._starts = self._table.starts()
        self._lost: set[int] = set()

    def begin(self) -> list[ByteRange]:
        """Write the table; return where each object that has bytes goes."""
        self._write_table()
        edges = self._starts.tolist()
        return [ByteRange(low, high) for low, high in itertools.pairwise(edges) if high > low]

    def finish(self) -> None:
        """Mark what did not come."""
        if self._lost:
            self._table = replace(self._table, lost=tuple(sorted(self._lost)))
            self._write_table()

    def _write_table(self) -> None:
        table = ByteRange(0, self._table.size_bytes)
        with self.target[: table.end] as piece:
            piece[:] = self._table.render()
            self.arrived(table, piece, "")

    def lost(self, span: ByteRange, error: FeeddError) -> bool:
        """Whether the pack can do without an object; see ``Arrivals.lost``."""
        number = self._number(span)
        if number not in self._lost:
            count = len(self._starts) - 1
            if len(self._lost) >= min(max(1, count // _LOST_SHARE), count - 1):
                return False  # that is no matter of single objects
            self._lost.add(number)
            _log.warning("an object is lost", object=self._members.ref(self._first + number).url, reason=error.message)
        return True

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return which bytes of which object lie there."""
        number = self._number(span)
        start = int(self._starts[number])
        return self._members.ref(self._first + number), ByteRange(span.start - start, span.end - start)

    def _number(self, span: ByteRange) -> int:
        return int(np.searchsorted(self._starts, span.start, "right")) - 1
