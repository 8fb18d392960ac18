"""Fetches whole objects by parallel ranges: most urgent first, bounded in count and in bytes over all objects.

The way of a fetch: ``RangeFetcher.fetch`` cuts the object into parts and joins the scheduler. Each place that becomes
free goes to the most urgent fetch, which begins a task for one part. The stores retry; this file does not, except for
parts that differ from their checksum.

Rules, each with the test that holds it:

- A free place goes to the most urgent fetch: ``test_a_freed_place_goes_to_the_most_urgent``.
- Bytes in flight are bounded over all objects: ``test_bytes_in_flight_are_bounded``.
- An object of many parts has few tasks: ``test_a_huge_object_is_cut_as_it_goes``.
- A failed fetch takes only its own parts down: ``test_other_fetches_survive_a_failure``.
- A final error is raised before one that a retry may solve: ``test_failure_that_lasts_is_told_first``.
- No failure or cancellation loses a place: ``test_a_place_is_not_lost_with_a_fetch_that_fails_meanwhile``,
  ``test_cancelled_before_the_first_step``, ``test_case_51_cancelled_at_any_await``.
- An object whose checksum cannot be asked for is not trusted: ``test_a_failed_question_fails_the_fetch``.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError, NotFound, PermissionDenied
from feedd.fetch.checksums import Arrivals
from feedd.fetch.limits import ConcurrencyLimit, PartSize, TurnLimit, TurnWatch
from feedd.fetch.scheduler import PARTS_PER_PLACE, FetchEntry, FetchScheduler
from feedd.metrics import FETCH_BYTES, FETCH_PARTS, FETCH_PARTS_MAX
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from feedd.flow.budget import ByteBudget
    from feedd.protocols import FetchWatch, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of a ``RangeFetcher``.

    Attributes:
        part_size_bytes: size of one request; 0: chosen by the object and its bucket.
        parts_in_flight: concurrent requests, over all objects.
        verified: verify objects against their stores' checksums.
        writers: number of writing threads, each with a different file; see ``FetchScheduler``.
        now_s: the clock of ``ReadProgress``, by which part sizes are learned.
    """

    part_size_bytes: int
    parts_in_flight: int
    verified: bool = False
    writers: int = 2
    now_s: Callable[[], float] = time.monotonic


class RangeFetcher:
    """A ``ShardFetcher`` that splits objects into parts.

    Parts of all objects share one scheduler. The place of a finished part goes to the most urgent fetch. So the first
    parts of the next object use the bandwidth that the last parts of one object leave free.

    Args:
        store_of: finds the store of a root.
        budget: bytes of parts in flight; used by this fetcher only.
        recorder: takes the measurements.
        limits: bounds of the requests.
        concurrency_of: finds the concurrency limit of a root; None: each root gets a new one.
        sizes_of: finds the part size of a root; None: one size for all roots.
    """

    def __init__(
        self,
        store_of: Callable[[str], ObjectStore],
        budget: ByteBudget,
        recorder: Recorder,
        limits: FetchLimits,
        concurrency_of: Callable[[str], ConcurrencyLimit] | None = None,
        sizes_of: Callable[[str], PartSize] | None = None,
    ) -> None:
        self._store_of = store_of
        self._budget = budget
        self._recorder = recorder
        self._limits = limits
        recorder.gauge(FETCH_PARTS_MAX, limits.parts_in_flight)
        self._unverified: set[str] = set()
        self._concurrencies: dict[str, ConcurrencyLimit] = {}
        self._concurrency_of = concurrency_of or (
            lambda root: self._concurrencies.setdefault(root, ConcurrencyLimit(limits.parts_in_flight))
        )
        fixed = PartSize(limits.part_size_bytes, limits.parts_in_flight, budget.limit_bytes)
        self._sizes_of = sizes_of or (lambda _: fixed)
        self._turns = TurnLimit(limits.parts_in_flight * PARTS_PER_PLACE)
        self._watch = TurnWatch(self._turns, lambda: self._scheduler.small_count, self._advance)
        self._scheduler: FetchScheduler[_Parts] = FetchScheduler(
            limits.parts_in_flight,
            budget,
            lambda root: self._concurrency_of(root).limit,
            limits.writers,
            lambda: self._turns.limit,
        )

    def __repr__(self) -> str:
        return f"RangeFetcher({self._limits.part_size_bytes} bytes per part, {self._budget!r})"

    @property
    def scheduler(self) -> FetchScheduler[_Parts]:
        """What waits and what is in flight; another thread may read its counts."""
        return self._scheduler

    @property
    def turns(self) -> Iterator[int]:
        """See ``FetchScheduler.tickets``."""
        return self._scheduler.tickets

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Fill ``sink``; see ``ShardFetcher.fetch``. The first part that fails stops the others."""
        assert sink.size_bytes == ref.size_bytes, "the sink must be exactly as long as the object"
        arrivals = Arrivals(ref, sink, watch)
        spans: tuple[ByteRange, ...] = (ByteRange(0, ref.size_bytes),) if ref.size_bytes else ()
        # Chosen once, so that damaged spans are cut in the same way again.
        part_bytes = self._sizes_of(ref.root).of(ref.size_bytes)
        fetch_count = 0
        while spans:
            ask = self._limits.verified and not fetch_count
            await self._fetch_spans(arrivals, spans, part_bytes, ask=ask)
            fetch_count += 1
            spans = await arrivals.damaged(self._recorder, fetch_count)

    async def matches(self, ref: ObjectRef, sink: RangeSink) -> bool:
        """Whether ``sink`` holds the object's bytes, as far as a fetch verifies them; see ``VerifyingFetcher``."""
        if not self._limits.verified:
            return True
        arrivals, whole = Arrivals(ref, sink, None), asyncio.Event()
        whole.set()
        await arrivals.ask(self._store_of(ref.root), whole, self._unverified)
        return not await arrivals.damaged(self._recorder, 0)

    async def fetch_to(self, arrivals: Arrivals, spans: Sequence[ByteRange]) -> None:
        """Fill spans of ``arrivals``, each from the object that belongs there; checksums are not verified.

        Raises what ``ObjectStore.read_into`` raises.
        """
        part_bytes = self._sizes_of(arrivals.ref.root).of(arrivals.ref.size_bytes)
        wanted = [span for span in spans if span.size_bytes]
        if wanted:
            await self._fetch_spans(arrivals, wanted, part_bytes, ask=False)

    async def _fetch_spans(self, arrivals: Arrivals, spans: Iterable[ByteRange], part_bytes: int, *, ask: bool) -> None:
        store = self._store_of(arrivals.ref.root)
        me = asyncio.current_task()
        assert me is not None
        cancels_before = me.cancelling()
        failures: list[FeeddError] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                parts = _Parts(arrivals, spans, part_bytes, tasks)
                arrivals.joined(parts)
                self._scheduler.join(parts)
                try:
                    self._advance()
                    asking = [tasks.create_task(arrivals.ask(store, parts.ended, self._unverified))] if ask else []
                    await parts.ended.wait()
                    if asking:  # a task that fails while its group exits leaves the caller cancelled (Python 3.11)
                        await asyncio.wait(asking)
                finally:
                    self._scheduler.leave(parts)
        except* FeeddError as group:
            failures = _flat(group)
        if failures:
            if me.cancelling() > cancels_before:  # a task group with failures of its own loses the outer cancellation
                raise asyncio.CancelledError from failures[0]
            # a final error says more than an error that a retry might have solved
            raise min(failures, key=lambda error: error.retryable)

    def _advance(self, freed: ByteRange | None = None) -> None:
        """Begin as many parts as there are places; ``freed``: a part that ended and released its place."""
        loop = asyncio.get_running_loop()
        size_bytes, count = (0, 0) if freed is None else (-freed.size_bytes, -1)
        while (taken := self._scheduler.take()) is not None:
            parts, span = taken
            task = self._begin(parts, span)
            if task is None:
                self._scheduler.leave(parts)
                self._scheduler.give_back(parts, span)
                continue
            size_bytes, count = size_bytes + span.size_bytes, count + 1
            # a callback releases the place, because a task cancelled before its first step never runs
            task.add_done_callback(functools.partial(self._ended, parts, span, loop.time()))
        if size_bytes:
            self._recorder.move(FETCH_BYTES, size_bytes)
        if count:  # in most calls one part replaces another
            self._recorder.move(FETCH_PARTS, count)
        if self._scheduler.small_count:
            self._watch.begin()

    def _begin(self, parts: _Parts, span: ByteRange) -> asyncio.Task[None] | None:
        """Begin a part; None: the fetch has just failed, and no part of it begins any more."""
        work = self._read(parts.arrivals, span)
        try:
            return parts.tasks.create_task(work, context=parts.context)
        except RuntimeError:  # the task group is ending
            work.close()
            return None

    async def _read(self, arrivals: Arrivals, span: ByteRange) -> None:
        progress, now_s = ReadProgress(), self._limits.now_s
        asked_s = now_s()
        part = arrivals.sink.part(span.start, span.end)
        ref, wanted = arrivals.locate(span)
        try:
            await self._store_of(ref.root).read_into(ref, wanted, part, progress)
        except (NotFound, PermissionDenied) as error:
            if arrivals.put_off(span, error):
                return
            if not arrivals.lost(span, error):
                raise
            await part.write(0, bytes(span.size_bytes))
        if progress.first_byte_s is not None:
            sizes = self._sizes_of(arrivals.ref.root)
            sizes.note(span.size_bytes, progress.first_byte_s - asked_s, now_s() - asked_s)
        arrivals.arrived(span, part, progress.answered_by)

    def _ended(self, parts: _Parts, span: ByteRange, began_s: float, task: asyncio.Task[None]) -> None:
        """Release the place of a part; a failed fetch begins no further part."""
        if not task.cancelled() and task.exception() is None:
            elapsed_s = asyncio.get_running_loop().time() - began_s
            self._concurrency_of(parts.group).ended(
                span.size_bytes, elapsed_s, self._scheduler.in_flight_of(parts.group)
            )
        else:
            self._scheduler.leave(parts)
        self._scheduler.give_back(parts, span)
        if parts.over:
            parts.ended.set()
        self._advance(span)


class _Parts(FetchEntry):
    """The parts of one fetch: their scheduler entry, and the task group that runs them.

    Attributes:
        arrivals: gets the parts.
        tasks: runs the parts.
        context: context of the fetch, because another fetch's part may free the place.
        ended: set when all parts have ended.
    """

    def __init__(
        self, arrivals: Arrivals, spans: Iterable[ByteRange], part_size_bytes: int, tasks: asyncio.TaskGroup
    ) -> None:
        watch = arrivals.watch
        super().__init__(arrivals.ref.root, spans, part_size_bytes, _whenever if watch is None else watch.urgency)
        self.arrivals = arrivals
        self.many = arrivals.many
        self.tasks = tasks
        self.context = contextvars.copy_context()
        self.ended = asyncio.Event()
        if self.over:  # there are only empty spans
            self.ended.set()


def _whenever() -> float:
    return 0.0


def _flat(group: BaseExceptionGroup[FeeddError]) -> list[FeeddError]:
    found: list[FeeddError] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
