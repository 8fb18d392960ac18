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
from feedd.converting.conversion_log import ConversionFact
from feedd.errors import BadShard, FeeddError
from feedd.metrics import PIPELINE_MADE, PIPELINE_MADE_BYTES, PIPELINE_MADE_SECONDS
from feedd.workers.work import ConvertedShard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.converting.object_ranges import FetchedRanges, ObjectRanges
    from feedd.protocols import Recorder
    from feedd.values import ObjectRef
    from feedd.workers.work import MakeTask, MissingRanges

    Make = Callable[[MakeTask], Awaitable[ConvertedShard | MissingRanges]]

_TABLE: Final = "table"


class WorkerConversions:
    """Conversions by workers.

    Args:
        ranges: fetches ranges of objects.
        make: has a worker convert an object.
        limit_bytes: maximum size of one converted shard.
        makings: maximum number of workers that convert at one time; outlines do not count.
        recorder: counts conversions.

    Attributes:
        make: as given.
        expect: called with a converter's name before an object is fetched for it.
    """

    def __init__(self, ranges: ObjectRanges, make: Make, limit_bytes: int, makings: int, recorder: Recorder) -> None:
        self.make = make
        self.expect: Callable[[str], None] = lambda _: None
        self._ranges = ranges
        self._limit_bytes = limit_bytes
        self._semaphore = asyncio.Semaphore(makings)
        self._recorder = recorder

    async def converted(
        self, ref: ObjectRef, task: MakeTask, source: FetchedRanges, urgency: Callable[[], float]
    ) -> ConvertedShard:
        """Fetch the ranges that the conversion needs, until a worker has made the shard."""
        outcome = await self.converted_or_sized(ref, task, source, urgency, may_tell=False)
        assert isinstance(outcome, ConvertedShard), "a size is not asked for"
        return outcome

    async def converted_or_sized(
        self, ref: ObjectRef, task: MakeTask, source: FetchedRanges, urgency: Callable[[], float], *, may_tell: bool
    ) -> ConvertedShard | ConversionFact:
        """Fetch the ranges that the conversion needs, until a worker has made the shard, or has told its size.

        Args:
            ref: the object.
            task: the conversion.
            source: ranges that are there; gets the others.
            urgency: see ``FetchWatch``.
            may_tell: if the object tells the shard's size, only fetch all ranges.
        """
        plain, conversion = replace(ref, conversion=None), task.conversion
        self.expect(conversion.name)
        converter, rounds = registry.get(conversion.name), requests_max(conversion.name)
        try:
            wanted = converter.wanted(MappedObject(-1, ref.size_bytes), conversion.params) if not source.spans else ()
            table_bytes = -1
            for _ in range(rounds):
                await self._ranges.fetch(plain, wanted, source, urgency, again=conversion.params == TYPES)
                if may_tell and 0 <= table_bytes <= self._limit_bytes:
                    return ConversionFact(ref.size_bytes, table_bytes, _TABLE)
                outcome = await self._ask_worker(replace(task, spans=source.spans, source_fd=source.file.fd))
                if isinstance(outcome, ConvertedShard):
                    self._count(conversion.name, outcome)
                    return outcome
                wanted, table_bytes = outcome.ranges, outcome.table_bytes
        except FeeddError as error:
            error.object = error.object or ref.url
            raise
        message = f"expected to convert the object, got {rounds} requests for more of its ranges"
        raise BadShard(message, object=ref.url, stage="decode")

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
