"""Lets workers convert objects, and fetches what they ask for."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from feedd.convert import conversion_registry as registry
from feedd.convert.conversion_io import MappedObject
from feedd.convert.counting import requests_max
from feedd.convert.table_converters import TYPES
from feedd.converting.object_ranges import joined
from feedd.errors import BadShard, FeeddError
from feedd.flow.tasks import run_all
from feedd.metrics import PIPELINE_MADE, PIPELINE_MADE_BYTES, PIPELINE_MADE_SECONDS
from feedd.workers.work import ConvertedShard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.convert.whole_table import TablePlan
    from feedd.converting.growing_table import GrowingTable
    from feedd.converting.object_ranges import FetchedRanges, ObjectRanges
    from feedd.fetch.inflight_packs import InflightPacks
    from feedd.protocols import Recorder
    from feedd.values import ObjectRef
    from feedd.workers.work import MakeTask, MissingRanges

    Make = Callable[[MakeTask], Awaitable[ConvertedShard | MissingRanges]]

_TABLE: Final = "table"
_PARTS_AT_ONCE: Final = 3  # of a table: one is fetched while others are converted


class WorkerConversions:
    """Conversions by workers.

    Args:
        ranges: fetches ranges of objects.
        make: has a worker convert an object.
        limit_bytes: maximum size of one converted shard.
        makings: maximum number of workers that convert at one time; outlines do not count.
        recorder: counts conversions.
        inflight: told about tables that grow.

    Attributes:
        make: as given.
        expect: called with a converter's name before an object is fetched for it.
    """

    def __init__(
        self,
        ranges: ObjectRanges,
        make: Make,
        limit_bytes: int,
        makings: int,
        recorder: Recorder,
        inflight: InflightPacks,
    ) -> None:
        self.make = make
        self._inflight = inflight
        self.expect: Callable[[str], None] = lambda _: None
        self._ranges = ranges
        self._limit_bytes = limit_bytes
        self._semaphore = asyncio.Semaphore(makings)
        self._recorder = recorder

    async def converted_or_planned(
        self, ref: ObjectRef, task: MakeTask, source: FetchedRanges, urgency: Callable[[], float], *, may_plan: bool
    ) -> ConvertedShard | TablePlan:
        """Fetch the ranges that the conversion needs, until a worker has made the shard, or knows its layout.

        Args:
            ref: the object.
            task: the conversion.
            source: ranges that are there; gets the others.
            urgency: see ``FetchWatch``.
            may_plan: if the object tells the layout of the shard, return that, and fetch no values.
        """
        plain, conversion = replace(ref, conversion=None), task.conversion
        self.expect(conversion.name)
        converter, rounds = registry.get(conversion.name), requests_max(conversion.name)
        try:
            wanted = converter.wanted(MappedObject(-1, ref.size_bytes), conversion.params) if not source.spans else ()
            for _ in range(rounds):
                await self._ranges.fetch(plain, wanted, source, urgency, again=conversion.params == TYPES)
                outcome = await self._ask_worker(replace(task, spans=source.spans, source_fd=source.file.fd))
                if isinstance(outcome, ConvertedShard):
                    self._count(conversion.name, outcome)
                    return outcome
                if may_plan and outcome.plan is not None and outcome.plan.size_bytes <= self._limit_bytes:
                    source.plan = outcome.plan
                    return outcome.plan
                wanted = outcome.ranges
        except FeeddError as error:
            error.object = error.object or ref.url
            raise
        message = f"expected to convert the object, got {rounds} requests for more of its ranges"
        raise BadShard(message, object=ref.url, stage="decode")

    async def fill(
        self,
        growing: GrowingTable,
        task: MakeTask,
        source: FetchedRanges,
        urgency: Callable[[], float],
        *,
        readable: bool,
    ) -> bool:
        """Convert a table into its entry, some row groups at a time; return False if the object contradicts its footer.

        Args:
            growing: the table.
            task: the conversion.
            source: has the footer; gets the other ranges.
            urgency: see ``FetchWatch``.
            readable: whether the index of the table is known, so that rows can be read while others are converted.
        """
        footer, plain = source.spans, replace(growing.ref, conversion=None)
        busy_s = 0.0
        fits = True

        async def convert_parts() -> None:
            nonlocal busy_s, fits
            while fits and (part := growing.begin()) is not None:
                ranges = growing.ranges_in(part)
                await self._ranges.fetch(plain, ranges, source, urgency, again=False)
                spans = joined((*footer, *ranges))
                groups = growing.groups_in(part)
                made = await self._ask_worker(replace(task, spans=spans, source_fd=source.file.fd, groups=groups))
                assert isinstance(made, ConvertedShard), "all ranges are there"
                fits = fits and made.size_bytes == growing.shard.size_bytes
                if fits:
                    busy_s += made.busy_s
                    growing.finish(part)
                    self._inflight.progressed(growing)

        whole = False
        if readable:
            self._inflight.began(growing)
        try:
            await run_all(convert_parts() for _ in range(_PARTS_AT_ONCE))
            whole = fits
        except FeeddError as error:
            error.object = error.object or growing.ref.url
            raise
        finally:
            self._inflight.ended(growing, whole=whole)
        if fits:
            self._count(task.conversion.name, ConvertedShard(growing.shard.size_bytes, _TABLE, busy_s))
        return fits

    async def _ask_worker(self, task: MakeTask) -> ConvertedShard | MissingRanges:
        """Let a worker convert an object. If images kill it, retry without decoding them: they are then bad samples."""
        async with nullcontext() if registry.is_outline(task.conversion) else self._semaphore:
            try:
                return await self.make(task)
            except BadShard:
                conversion = registry.undecoded(task.conversion)
                if conversion == task.conversion:
                    raise
            return await self.make(replace(task, conversion=conversion))

    def _count(self, converter: str, made: ConvertedShard) -> None:
        self._recorder.count(PIPELINE_MADE, conversion=converter)
        self._recorder.count(PIPELINE_MADE_BYTES, made.size_bytes, conversion=converter)
        self._recorder.count(PIPELINE_MADE_SECONDS, made.busy_s, conversion=converter)
