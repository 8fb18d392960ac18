"""Whole objects by parallel ranges, bounded in count and in bytes over all objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from feedd.plan.parts import split
from feedd.source.verified import Arrivals
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.budget import ByteBudget
    from feedd.protocols import FetchWatch, ObjectStore, Recorder
    from feedd.values import ObjectRef


class RangeFetcher:
    """A ``ShardFetcher`` that cuts objects into parts.

    Parts of all objects stand in one line, in the order the fetches began: earlier shards finish first,
    and the bandwidth of the last parts of one is already used by the first parts of the next.
    """

    def __init__(
        self,
        store_of: Callable[[str], ObjectStore],
        budget: ByteBudget,
        recorder: Recorder,
        *,
        part_size_bytes: int,
        parts_in_flight: int,
        verified: bool = False,
    ) -> None:
        self._store_of = store_of
        self._budget = budget
        self._recorder = recorder
        self._part_size_bytes = part_size_bytes
        self._verified = verified
        self._unverified: set[str] = set()
        self._line = asyncio.Semaphore(parts_in_flight)

    def __repr__(self) -> str:
        return f"RangeFetcher({self._part_size_bytes} bytes per part, {self._budget!r})"

    async def fetch(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None = None) -> None:
        """Fill ``target``; see ``ShardFetcher.fetch``. The first part that fails stops its siblings."""
        assert target.nbytes == ref.size_bytes, "the target must be exactly as long as the object"
        store = self._store_of(ref.root)
        arrivals = Arrivals(ref, target, watch)
        spans: tuple[ByteRange, ...] = (ByteRange(0, ref.size_bytes),) if ref.size_bytes else ()
        fetch_count = 0
        while spans:
            await self._fetch_spans(store, arrivals, spans, ask=self._verified and not fetch_count)
            fetch_count += 1
            spans = await arrivals.damaged(self._recorder, fetch_count)

    async def _fetch_spans(
        self, store: ObjectStore, arrivals: Arrivals, spans: tuple[ByteRange, ...], *, ask: bool
    ) -> None:
        failures: list[FeeddError] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for whole in spans:
                    for span in split(whole.size_bytes, self._part_size_bytes):
                        at = ByteRange(whole.start + span.start, whole.start + span.end)
                        tasks.create_task(self._fetch_part(store, at, arrivals))
                if ask:
                    tasks.create_task(arrivals.ask(store, self._unverified))
        except* FeeddError as group:
            failures = _flat(group)
        if failures:
            # an error that ends the fetch for good says more than one that might have passed
            raise min(failures, key=lambda error: error.retryable)

    async def _fetch_part(self, store: ObjectStore, span: ByteRange, arrivals: Arrivals) -> None:
        size_bytes = span.size_bytes
        async with self._line, self._budget.reserve(size_bytes):
            self._recorder.move(FETCH_BYTES, size_bytes)
            self._recorder.move(FETCH_PARTS, 1)
            try:
                with arrivals.target[span.start : span.end] as piece:
                    progress = ReadProgress()
                    await store.read_into(arrivals.ref, span, piece, progress)
                    arrivals.arrived(span, piece, progress.answered_by)
            finally:
                self._recorder.move(FETCH_BYTES, -size_bytes)
                self._recorder.move(FETCH_PARTS, -1)


def _flat(group: BaseExceptionGroup[FeeddError]) -> list[FeeddError]:
    found: list[FeeddError] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
