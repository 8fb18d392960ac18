"""Whole objects by parallel ranges, bounded in count and in bytes over all objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from feedd.plan.parts import split

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.budget import ByteBudget
    from feedd.protocols import FetchWatch, ObjectStore, Recorder
    from feedd.values import ByteRange, ObjectRef


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
    ) -> None:
        self._store_of = store_of
        self._budget = budget
        self._recorder = recorder
        self._part_size_bytes = part_size_bytes
        self._line = asyncio.Semaphore(parts_in_flight)

    def __repr__(self) -> str:
        return f"RangeFetcher({self._part_size_bytes} bytes per part, {self._budget!r})"

    async def fetch(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None = None) -> None:
        """Fill ``target``; see ``ShardFetcher.fetch``. The first part that fails stops its siblings."""
        assert target.nbytes == ref.size_bytes, "the target must be exactly as long as the object"
        store = self._store_of(ref.root)
        failures: list[FeeddError] = []
        try:
            async with asyncio.TaskGroup() as parts:
                for span in split(ref.size_bytes, self._part_size_bytes):
                    parts.create_task(self._fetch_part(store, ref, span, target, watch))
        except* FeeddError as group:
            failures = _flat(group)
        if failures:
            # an error that ends the fetch for good says more than one that might have passed
            raise min(failures, key=lambda error: error.retryable)

    async def _fetch_part(
        self, store: ObjectStore, ref: ObjectRef, span: ByteRange, target: memoryview, watch: FetchWatch | None
    ) -> None:
        size_bytes = span.size_bytes
        async with self._line, self._budget.reserve(size_bytes):
            self._recorder.move(FETCH_BYTES, size_bytes)
            self._recorder.move(FETCH_PARTS, 1)
            try:
                with target[span.start : span.end] as piece:
                    await store.read_into(ref, span, piece)
                    if watch is not None:
                        watch.arrived(span, piece)
            finally:
                self._recorder.move(FETCH_BYTES, -size_bytes)
                self._recorder.move(FETCH_PARTS, -1)


def _flat(group: BaseExceptionGroup[FeeddError]) -> list[FeeddError]:
    found: list[FeeddError] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
