"""Packs: one cache entry of many objects; each object is fetched into its region, like a part of one object.

Entries can be read while they are being filled: a batch waits only for its own samples. A pack is written to its cache
entry object by object, and no object is written again once it has arrived. A table that grows by row groups is read so
too: its objects are rows. Used on one event loop; bookkeeping only.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import os
import weakref
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, Self

import structlog

from feedd.dataset.object_spans import is_span, object_of
from feedd.dataset.pack_layout import is_pack
from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.checksums import Arrivals
from feedd.fetch.hints import CHANGED_HINT
from feedd.flow.range_sinks import FileSink
from feedd.values import ByteRange, ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.dataset.packs import Packs
    from feedd.errors import FeeddError
    from feedd.fetch.ranged import RangeFetcher
    from feedd.fetch.scheduler import FetchEntry
    from feedd.flow.loop_thread import WorkLoop
    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

_ticket_of = attrgetter("ticket")
_LANDED_S: Final = 5.0  # by then the cache knows the entry, which it publishes within milliseconds
_LOST_SHARE: Final = 16  # a pack tolerates the loss of one in this many objects
_DENIED_MAX: Final = 256  # refused objects of a pack are requested again if there are at most this many
_log = structlog.get_logger(__name__)


class InflightPack(Protocol):
    """One pack being fetched."""

    @property
    def ref(self) -> ObjectRef:
        """Ref of the pack, as listed."""

    @property
    def shard(self) -> ObjectRef:
        """Ref of the entry: the pack's, or that of a converted shard."""

    @property
    def file_sink(self) -> FileSink | None:
        """The piece of a file that the pack is written to, or None if the sink is not a file."""

    def missing(self, objects: set[int]) -> set[int]:
        """Return those of ``objects`` that have not arrived; lost objects count as arrived."""

    def whole(self, objects: set[int]) -> bool:
        """Whether all of ``objects`` have arrived and none is lost."""

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Fetch these objects before others."""


class PartialWait:
    """The objects that one batch waits for; a context manager. Reading ends within it.

    Args:
        book: reports arriving objects.
        wanted: objects of packs, whether or not these packs are being fetched yet.
        ticket: order among competing waits; a lower turn goes first.

    Attributes:
        ticket: as given.
        ready: done once all objects had arrived. A fetch that fails afterwards takes them away again.
    """

    def __init__(self, book: InflightPacks, wanted: Mapping[ObjectRef, set[int]], ticket: int) -> None:
        self._book = book
        self._wanted = wanted
        self.ticket = ticket
        self._left = {ref: set(objects) for ref, objects in wanted.items()}
        self._fds: list[int] = []
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        self._book.enter(self, self._wanted)
        return self

    def __exit__(self, *exc: object) -> None:
        """Unregister the wait and close its files."""
        self._book.leave(self, self._wanted)
        self.ready.cancel()
        while self._fds:
            os.close(self._fds.pop())

    def began(self, running: InflightPack) -> None:
        """Handle the start of a fetch of a pack; arrivals of an earlier fetch no longer count."""
        left = running.missing(self._wanted[running.ref])
        self._left[running.ref] = set(left)
        if left:
            running.expedite(self.ticket, left)
        else:
            self._look(running.ref)

    def arrived(self, ref: ObjectRef, number: int) -> None:
        """Handle the arrival or loss of an object."""
        left = self._left.get(ref)
        if left is not None:
            left.discard(number)
            self._look(ref)

    def finished(self, ref: ObjectRef) -> None:
        """Handle the end of a pack's fetch: the cache has the entry, or will have it in a moment."""
        self._left[ref] = set()
        self._look(ref)

    def files(self) -> dict[ObjectRef, ShardFile]:
        """Return the unfinished packs of which all wanted objects have arrived; the files stay open until the end.

        Raises:
            OSError: no descriptor is left.
        """
        found: dict[ObjectRef, ShardFile] = {}
        for ref, objects in self._wanted.items():
            running = self._book.running(ref)
            sink = running.file_sink if running is not None and running.whole(objects) else None
            if running is not None and sink is not None:
                # a descriptor of its own, because the fetch may close its one, and for reading only
                self._fds.append(os.open(f"/proc/self/fd/{sink.file.fd}", os.O_RDONLY | os.O_CLOEXEC))
                path = f"/proc/{os.getpid()}/fd/{self._fds[-1]}"
                found[ref] = ShardFile(running.shard, path, sink.offset, inflight=True, fd=self._fds[-1])
        return found

    def _look(self, ref: ObjectRef) -> None:
        if not self._left.get(ref, True):
            del self._left[ref]
        if not self._left and not self.ready.done():
            self.ready.set_result(None)


class InflightPacks:
    """The packs being fetched, and the waits for objects in them."""

    def __init__(self) -> None:
        self._running: dict[ObjectRef, InflightPack] = {}
        self._waiting: dict[ObjectRef, list[PartialWait]] = {}
        self._finished: dict[ObjectRef, float] = {}  # end times of finished fetches that the cache may not know yet

    def running(self, ref: ObjectRef) -> InflightPack | None:
        """Return the pack if it is being fetched, else None."""
        return self._running.get(ref)

    def began(self, running: InflightPack) -> None:
        """Record a fetch that is about to begin."""
        self._running[running.ref] = running
        self._finished.pop(running.ref, None)
        for awaited in self._waiting.get(running.ref, ()):
            awaited.began(running)

    def progressed(self, running: InflightPack) -> None:
        """Have all waits look again which of their objects are missing."""
        for awaited in self._waiting.get(running.ref, ()):
            awaited.began(running)

    def arrived(self, running: InflightPack, number: int) -> None:
        """Record an object that has arrived, or is lost."""
        for awaited in self._waiting.get(running.ref, ()):
            awaited.arrived(running.ref, number)

    def ended(self, running: InflightPack, *, whole: bool) -> None:
        """Record the end of a fetch."""
        if self._running.get(running.ref) is running:
            del self._running[running.ref]
        if whole:
            now_s = asyncio.get_running_loop().time()
            self._finished = {ref: at_s for ref, at_s in self._finished.items() if now_s - at_s < _LANDED_S}
            self._finished[running.ref] = now_s
            for awaited in self._waiting.get(running.ref, ()):
                awaited.finished(running.ref)

    def enter(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Register a wait and tell it about running fetches."""
        since_s = asyncio.get_running_loop().time() - _LANDED_S
        for ref in refs:
            bisect.insort(self._waiting.setdefault(ref, []), awaited, key=_ticket_of)
            running = self._running.get(ref)
            if running is not None:
                awaited.began(running)
            elif self._finished.get(ref, since_s) > since_s:
                awaited.finished(ref)

    def leave(self, awaited: PartialWait, refs: Mapping[ObjectRef, set[int]]) -> None:
        """Unregister a wait."""
        for ref in refs:
            self._waiting[ref].remove(awaited)
            if not self._waiting[ref]:
                del self._waiting[ref]


class PackBook:
    """The content of each pack of the listings in use, and the packs being fetched.

    Args:
        tickets: numbers the waits, from the scheduler's own sequence.
    """

    def __init__(self, tickets: Iterator[int]) -> None:
        self._listed: weakref.WeakKeyDictionary[Packs, None] = weakref.WeakKeyDictionary()
        self._turns = tickets
        self.inflight = InflightPacks()

    def note(self, packs: Packs) -> None:
        """Register the packs of a listing, for as long as another owner holds them."""
        self._listed[packs] = None

    def find(self, ref: ObjectRef) -> tuple[Packs, int]:
        """Return the newest listing's packs that contain a pack, and the pack's number there.

        A newer listing knows the current version of a manifest that has grown; the packs of earlier lines are the same.

        Raises:
            ObjectChanged: the pack belongs to no listing in use.
        """
        return _find(ref, self._newest_first())

    def ticket(self) -> int:
        """Return a turn number in the scheduler's order, before all later requests."""
        return next(self._turns)

    def wait_for(self, wanted: Mapping[ObjectRef, NDArray[np.int64]], ticket: int) -> PartialWait:
        """Return a wait for samples, given as ordinals within each shard; of converted ones, for the first to the last.

        Raises:
            ObjectChanged: see ``find``.
        """
        objects: dict[ObjectRef, set[int]] = {}
        listed = self._newest_first()
        for ref, samples in wanted.items():
            if ref.conversion is not None:
                objects[ref] = set(samples[[0, -1]].tolist()) if len(samples) else set()
                continue
            packs, number = _find(ref, listed)
            objects[ref] = packs.objects_of(number, samples)
        return PartialWait(self.inflight, objects, ticket)

    def _newest_first(self) -> list[Packs]:
        return [*self._listed][::-1]


def _find(ref: ObjectRef, listed: Sequence[Packs]) -> tuple[Packs, int]:
    for packs in listed:
        number = packs.find(ref)
        if number is not None:
            return packs, number
    message = "the pack belongs to no listing in use"
    raise ObjectChanged(message, object=ref.url, hint=CHANGED_HINT, stage="source")


class ObjectsFetcher:
    """A ``SpanFetcher`` of objects, of their spans and of packs, which share one scheduler on the work loop.

    Length and ETag of spans and of a pack's objects are verified. Checksums are not: a store has those of whole objects
    only, and of a pack's objects each would cost one more request.

    Args:
        plain: fetches objects; belongs to the work loop.
        book: knows the packs; belongs to the caller's loop.
        work_loop: runs all fetches. A pack is one run there.
    """

    def __init__(self, plain: RangeFetcher, book: PackBook, work_loop: WorkLoop) -> None:
        self._plain = plain
        self._book = book
        self._work_loop = work_loop

    def __repr__(self) -> str:
        return f"ObjectsFetcher({self._plain!r})"

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Fill ``sink``; see ``ShardFetcher.fetch``. Errors of a pack name the object they are about.

        An object that is missing or refused is requested again after the rest of the pack. If it is missing again, the
        pack's table marks it as lost, and its sample is bad. If it is refused again, or if many objects are missing,
        the fetch fails: only objects that do not exist may be left out.
        """
        if is_span(ref):
            await self.fetch_spans(ref, [ByteRange(0, ref.size_bytes)], sink, watch)
            return
        if not is_pack(ref):
            await self._work_loop.run(lambda: self._plain.fetch(ref, sink, watch))
            return
        assert sink.size_bytes == ref.size_bytes, "the sink must be exactly as long as the pack"
        packs, number = self._book.find(ref)
        arrivals = _PackArrivals(ref, sink, watch, packs, number)
        inflight = _RunningPack(arrivals, self._work_loop, self._book.inflight, packs.empty_objects(number))
        arrivals.follower = inflight
        whole = False
        self._book.inflight.began(inflight)  # before the run: what callers wait for already is fetched first
        try:
            await self._work_loop.run(lambda: self._fetch_pack(arrivals))
            whole = True
        finally:
            self._book.inflight.ended(inflight, whole=whole)

    async def _fetch_pack(self, arrivals: _PackArrivals) -> None:
        await self._plain.fetch_to(arrivals, await arrivals.begin())
        await self._plain.fetch_to(arrivals, arrivals.begin_again())
        await arrivals.finish()

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Fill spans of an object; see ``SpanFetcher.fetch_spans``."""
        assert sink.size_bytes == ref.size_bytes, "the sink must be exactly as long as the object"
        arrivals = _SpanArrivals(ref, sink, watch) if is_span(ref) else Arrivals(ref, sink, watch)
        await self._work_loop.run(lambda: self._plain.fetch_to(arrivals, spans))

    async def matches(self, ref: ObjectRef, sink: RangeSink) -> bool:
        """Whether ``sink`` holds an object's bytes; see ``VerifyingFetcher``."""
        return await self._work_loop.run(lambda: self._plain.matches(ref, sink))

    async def fetch_members(self, refs: Sequence[ObjectRef], sink: RangeSink) -> None:
        """Fill ``sink`` with objects of one store, each right behind the one before; length and ETag are verified.

        Raises what ``ObjectStore.read_into`` raises, for the first object that fails.
        """
        members = _Members(refs, sink)
        await self._work_loop.run(lambda: self._plain.fetch_to(members, members.spans))


class _SpanArrivals(Arrivals):
    """A span of a large object being fetched; belongs to the work loop."""

    def __init__(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None) -> None:
        super().__init__(ref, sink, watch)
        self._object, self._start = object_of(ref)

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return the object and the byte range that belong to ``span``."""
        return self._object, ByteRange(self._start + span.start, self._start + span.end)


class _Members(Arrivals):
    """Objects that are fetched side by side into one sink.

    Attributes:
        spans: the span of each object in the sink.
    """

    many = True

    def __init__(self, refs: Sequence[ObjectRef], sink: RangeSink) -> None:
        super().__init__(replace(refs[0], size_bytes=sink.size_bytes), sink, None)
        self._refs = refs
        edges = [0, *itertools.accumulate(ref.size_bytes for ref in refs)]
        assert edges[-1] == sink.size_bytes, "the sink must be exactly as long as the objects"
        self.spans = [ByteRange(low, high) for low, high in itertools.pairwise(edges)]
        self._starts = edges[:-1]

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return the object and the byte range that belong to ``span``."""
        number = bisect.bisect_right(self._starts, span.start) - 1
        start = self._starts[number]
        return self._refs[number], ByteRange(span.start - start, span.end - start)


class _RunningPack:
    """A pack being fetched, as the caller's loop knows it: an ``InflightPack``.

    Args:
        arrivals: the fetch, on the work loop.
        work_loop: passes calls on to the fetch, and reports from it.
        book: told about arrivals.
        empty: objects without bytes, which count as arrived.
    """

    def __init__(self, arrivals: _PackArrivals, work_loop: WorkLoop, book: InflightPacks, empty: Iterable[int]) -> None:
        self.ref = self.shard = arrivals.ref
        self.file_sink = arrivals.sink if isinstance(arrivals.sink, FileSink) else None
        self._arrivals = arrivals
        self._work_loop = work_loop
        self._book = book
        self._arrived = set(empty)
        self._lost = set(arrivals.unnamed)

    def missing(self, objects: set[int]) -> set[int]:
        """Return those of ``objects`` that have not arrived; lost objects count as arrived."""
        return objects - self._arrived

    def whole(self, objects: set[int]) -> bool:
        """Whether all of ``objects`` have arrived and none is lost."""
        return self._lost.isdisjoint(objects) and objects <= self._arrived

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Fetch these objects before others."""
        self._work_loop.post(self._arrivals.expedite, ticket, objects)

    def report_arrival(self, number: int, *, lost: bool) -> None:
        """Report that an object has arrived, or zeros in place of a lost object; called on the work loop."""
        self._work_loop.report(self._note_arrival, number, lost=lost)

    def _note_arrival(self, number: int, *, lost: bool) -> None:
        self._arrived.add(number)
        if lost:
            self._lost.add(number)
        self._book.arrived(self, number)


class _PackArrivals(Arrivals):
    """A pack being fetched; belongs to the work loop.

    Attributes:
        follower: told about arrivals.
        unnamed: objects that were missing when the manifest was read, or that its lines do not name.
    """

    many = True
    follower: _RunningPack

    def __init__(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None, packs: Packs, number: int) -> None:
        super().__init__(ref, sink, watch)
        self._members = packs.members
        self._first = packs.span(number).start
        self._table = packs.table(number)
        self.unnamed = self._table.lost
        self._essential = 0 if packs.has_texts else -1  # the object without which no sample can be read
        self._edges: list[int] = self._table.starts().tolist()
        self._lost: set[int] = set()
        # Objects to request again, and whether they are missing; None: the second round has begun.
        self._again: dict[int, bool] | None = {}
        self._left_bytes = [high - low for low, high in itertools.pairwise(self._edges)]  # missing bytes of each object
        self._entry: FetchEntry | None = None
        self._expedited: list[tuple[int, set[int]]] = []  # tickets, and the objects that their callers wait for

    def joined(self, standing: FetchEntry) -> None:
        """Register the pack's entry in the scheduler, and prioritize the objects that callers wait for."""
        self._entry = standing
        for ticket, objects in self._expedited:
            self._expedite_missing(standing, ticket, objects)

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Fetch these objects before others, now and when they are requested again."""
        self._expedited.append((ticket, objects))
        if self._entry is not None:
            self._expedite_missing(self._entry, ticket, objects)

    def _expedite_missing(self, entry: FetchEntry, ticket: int, objects: set[int]) -> None:
        edges = self._edges
        missing = [number for number in sorted(objects) if self._left_bytes[number]]
        entry.expedite(ticket, [ByteRange(edges[number], edges[number + 1]) for number in missing])

    async def begin(self) -> list[ByteRange]:
        """Write the table and return the span of each non-empty object."""
        await self._write_table()
        return [ByteRange(low, high) for low, high in itertools.pairwise(self._edges) if high > low]

    def begin_again(self) -> list[ByteRange]:
        """Return the span of each object to request again; from now on a refusal is final."""
        again, self._again = sorted(self._again or ()), None
        edges = self._edges
        for number in again:
            self._left_bytes[number] = edges[number + 1] - edges[number]  # some parts of the object may have arrived
        return [ByteRange(edges[number], edges[number + 1]) for number in again]

    async def finish(self) -> None:
        """Mark the lost objects in the table."""
        if self._lost:
            self._table = replace(self._table, lost=tuple(sorted(self._lost.union(self.unnamed))))
            await self._write_table()

    async def _write_table(self) -> None:
        table = ByteRange(0, self._table.size_bytes)
        part = self.sink.part(0, table.end)
        await part.write(0, self._table.render())
        super().arrived(table, part, "")

    def arrived(self, span: ByteRange, part: RangeSink, answered_by: str) -> None:
        """Record an object, or a part of a large object."""
        super().arrived(span, part, answered_by)
        number = self._number(span)
        self._left_bytes[number] -= span.size_bytes
        if not self._left_bytes[number]:
            self.follower.report_arrival(number, lost=number in self._lost)

    @property
    def _lost_max(self) -> int:
        """Number of objects the pack may lose; more losses point to a problem of the store."""
        count = len(self._edges) - 1
        return min(max(1, count // _LOST_SHARE), count - 1)

    def put_off(self, span: ByteRange, error: FeeddError) -> bool:
        """Whether an object is requested again at the end; see ``Arrivals.put_off``."""
        number = self._number(span)
        if self._again is None or number == self._essential:
            return False
        missing = isinstance(error, NotFound)
        if number not in self._again:
            like_it_count = sum(one == missing for one in self._again.values())
            if like_it_count >= (self._lost_max if missing else _DENIED_MAX):
                return False
            self._again[number] = missing
        return True

    def lost(self, span: ByteRange, error: FeeddError) -> bool:
        """Whether the pack tolerates the loss of an object; see ``Arrivals.lost``."""
        number = self._number(span)
        if self._again is not None or number == self._essential or not isinstance(error, NotFound):
            return False
        if number not in self._lost:
            if len(self._lost) >= self._lost_max:
                return False
            self._lost.add(number)
            _log.warning(
                "an object of a pack is missing: its sample is bad",
                object=self._members.ref(self._first + number).url,
                reason=error.message,
            )
        return True

    def locate(self, span: ByteRange) -> tuple[ObjectRef, ByteRange]:
        """Return the object and the byte range that belong to ``span``."""
        number = self._number(span)
        shift = self._members.offset(self._first + number) - self._edges[number]
        return self._members.ref(self._first + number), ByteRange(span.start + shift, span.end + shift)

    def _number(self, span: ByteRange) -> int:
        return bisect.bisect_right(self._edges, span.start) - 1
