"""Packs: one cache entry of many objects, each fetched to its place in it, as parts of one object would be."""

from __future__ import annotations

import bisect
import itertools
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from feedd.dataset.pack_layout import is_pack
from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.hints import CHANGED_HINT
from feedd.fetch.inflight_packs import InflightPacks, PartialWait, objects_of
from feedd.fetch.verified import Arrivals
from feedd.flow.file_writing import write_over
from feedd.flow.mapping import file_of
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.dataset.packs import Packs
    from feedd.errors import FeeddError
    from feedd.fetch.ranged import RangeFetcher
    from feedd.fetch.scheduler import FetchEntry
    from feedd.flow.mapping import FilePlace
    from feedd.protocols import FetchWatch
    from feedd.values import ObjectRef


_LOST_SHARE: Final = 16  # of the objects of a pack, one in so many may be lost
_DENIED_MAX: Final = 256  # objects of a pack that were refused are asked for again, where they are no more than this
_log = structlog.get_logger(__name__)


class PackBook:
    """What is in each pack of the listings that somebody holds, and what has come of those on their way in.

    Args:
        turns: numbers those who wait, as the line of all parts does.
    """

    def __init__(self, turns: Iterator[int]) -> None:
        self._listed: weakref.WeakSet[Packs] = weakref.WeakSet()
        self._turns = turns
        self.inflight = InflightPacks()

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

    def turn(self) -> int:
        """Return a place in the line of all parts, before all who ask later."""
        return next(self._turns)

    def wait_for(self, wanted: Mapping[ObjectRef, NDArray[np.int64]], turn: int) -> PartialWait:
        """Return a wait for samples of packs: ordinals within each.

        Raises:
            ObjectChanged: see ``find``.
        """
        objects = {ref: objects_of(*self.find(ref), samples) for ref, samples in wanted.items()}
        return PartialWait(self.inflight, objects, turn)


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

        An object that is missing, or refused, is asked for again when the rest of the pack is here. If it is missing
        again, the pack's table marks it as lost, and its sample is bad. If it is refused again, or if many objects are
        missing, that is the error: only what is not there may be left out.
        """
        if not is_pack(ref):
            await self._plain.fetch(ref, target, watch)
            return
        assert target.nbytes == ref.size_bytes, "the target must be exactly as long as the pack"
        arrivals = _PackArrivals(ref, target, watch, *self._book.find(ref))
        arrivals.inflight = self._book.inflight
        whole = False
        try:
            await self._plain.fetch_to(arrivals, await arrivals.begin())
            await self._plain.fetch_to(arrivals, arrivals.begin_again())
            await arrivals.finish()
            whole = True
        finally:
            self._book.inflight.ended(arrivals, whole=whole)

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], target: memoryview, watch: FetchWatch | None = None
    ) -> None:
        """Fill parts of an object; see ``SpanFetcher.fetch_spans``."""
        await self._plain.fetch_spans(ref, spans, target, watch)


class _PackArrivals(Arrivals):
    """A pack on its way in: an ``InflightPack``."""

    many = True
    inflight: InflightPacks

    def __init__(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None, packs: Packs, number: int) -> None:
        super().__init__(ref, target, watch)
        self._members = packs.members
        self._first = packs.span(number).start
        self._table = packs.table(number)
        self._edges: list[int] = self._table.starts().tolist()
        self._lost: set[int] = set()
        self._again: dict[int, bool] | None = {}  # objects to ask for again, and whether they are missing; None: asked
        self._left_bytes = [high - low for low, high in itertools.pairwise(self._edges)]  # of each object
        self._standing: FetchEntry | None = None

    @property
    def place(self) -> FilePlace | None:
        """Where it lands; None: in no file."""
        return file_of(self.target)

    def joined(self, standing: FetchEntry) -> None:
        """Stand in the line, where some of it may be hurried from now on."""
        self._standing = standing
        self.inflight.began(self)

    def missing(self, objects: set[int]) -> set[int]:
        """Return those of some of its objects that have not come; lost ones have."""
        return {number for number in objects if self._left_bytes[number]}

    def whole(self, objects: set[int]) -> bool:
        """Whether some of its objects are here, none of them lost."""
        return self._lost.isdisjoint(objects) and not self.missing(objects)

    def hurry(self, turn: int, objects: set[int]) -> None:
        """Fetch these before others."""
        assert self._standing is not None, "it stands in the line"
        edges = self._edges
        self._standing.hurry(turn, (ByteRange(edges[one], edges[one + 1]) for one in sorted(objects)))

    async def begin(self) -> list[ByteRange]:
        """Write the table; return where each object that has bytes goes."""
        await self._write_table()
        return [ByteRange(low, high) for low, high in itertools.pairwise(self._edges) if high > low]

    def begin_again(self) -> list[ByteRange]:
        """Return where each object goes that is asked for again; from now on a refusal is the last word."""
        again, self._again = sorted(self._again or ()), None
        edges = self._edges
        for number in again:
            self._left_bytes[number] = edges[number + 1] - edges[number]  # parts of it may have come
        return [ByteRange(edges[number], edges[number + 1]) for number in again]

    async def finish(self) -> None:
        """Mark what did not come."""
        if self._lost:
            self._table = replace(self._table, lost=tuple(sorted(self._lost)))
            await self._write_table()

    async def _write_table(self) -> None:
        table = ByteRange(0, self._table.size_bytes)
        with self.target[: table.end] as piece:
            await write_over(piece, self._table.render())
            super().arrived(table, piece, "")

    def arrived(self, span: ByteRange, piece: memoryview, answered_by: str) -> None:
        """Take note of an object, or of a part of a large one."""
        super().arrived(span, piece, answered_by)
        number = self._number(span)
        self._left_bytes[number] -= span.size_bytes
        if not self._left_bytes[number]:
            self.inflight.arrived(self, number)

    @property
    def _lost_max(self) -> int:
        """How many objects the pack can do without: more is no matter of single objects."""
        count = len(self._edges) - 1
        return min(max(1, count // _LOST_SHARE), count - 1)

    def put_off(self, span: ByteRange, error: FeeddError) -> bool:
        """Whether an object is asked for again at the end; see ``Arrivals.put_off``."""
        if self._again is None:
            return False
        missing = isinstance(error, NotFound)
        number = self._number(span)
        if number not in self._again:
            like_it_count = sum(one == missing for one in self._again.values())
            if like_it_count >= (self._lost_max if missing else _DENIED_MAX):
                return False
            self._again[number] = missing
        return True

    def lost(self, span: ByteRange, error: FeeddError) -> bool:
        """Whether the pack can do without an object; see ``Arrivals.lost``."""
        if self._again is not None or not isinstance(error, NotFound):
            return False
        number = self._number(span)
        if number not in self._lost:
            if len(self._lost) >= self._lost_max:
                return False
            self._lost.add(number)
            _log.warning("an object is lost", object=self._members.ref(self._first + number).url, reason=error.message)
        return True

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return which bytes of which object lie there."""
        number = self._number(span)
        start = self._edges[number]
        return self._members.ref(self._first + number), ByteRange(span.start - start, span.end - start)

    def _number(self, span: ByteRange) -> int:
        return bisect.bisect_right(self._edges, span.start) - 1
