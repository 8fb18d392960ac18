"""A cache rig behind ``ConvertingCache``, and a form that makes of an object what it is, in this very process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from feedd.cache.cache import Cache
from feedd.conversion import Conversion
from feedd.metrics import CACHE_BYTES, CACHE_ENTRIES, CACHE_PINS, CACHE_RESERVED, PIPELINE_MAKING
from feedd.tables import registry
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionFact, ConversionLog
from feedd.tables.ranges import everything
from feedd.values import ByteRange
from feedd.workers.make_messages import outcome_of
from tests.fakes.caches import SHARD_BYTES, SLOT_BYTES, CacheRig
from tests.fakes.fetchers import MemoryFetcher
from tests.fakes.made import answer_to
from tests.fakes.sinks import write_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from feedd.protocols import FetchWatch, PartialObject, ShardWriter
    from feedd.range_sink import RangeSink
    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges
    from feedd.values import ObjectRef

FORM = "same"


class SameForm:
    """``protocols.ShardConverter``: the shard is the object, made anyway."""

    name = FORM

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """All of it; or, with parameters, its halves one after the other."""
        if params != "halves" or not held.size_bytes:
            return everything(held)
        middle = (held.size_bytes + 1) // 2
        halves = (ByteRange(0, middle), ByteRange(middle, held.size_bytes))
        done = sum(span.size_bytes for span in held.spans)
        return () if done == held.size_bytes else (halves[1] if done else halves[0],)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Copy."""
        del url, params
        out.write(held.data)
        return "tar"


SAME = SameForm()


@contextlib.contextmanager
def same_form() -> Iterator[None]:
    """Have the form known meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._CONVERTERS, FORM, registry.ConversionSpec(FORM, __name__, "SAME", first=None))
        yield


class MakingFetcher(MemoryFetcher):
    """Knows objects by refs with or without a form."""

    def data(self, ref: ObjectRef) -> bytes:
        """Return what was stored."""
        return super().data(replace(ref, conversion=None))

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Fill these spans."""
        del watch
        self.calls[ref.key] += 1
        for span in spans:
            write_to(sink, span.start, self.data(ref)[span.start : span.end])


async def make(task: MakeTask) -> ConvertedShard | MissingRanges:
    """Do in this process what a worker does."""
    return outcome_of(answer_to(task))


@dataclass
class MadeRig(CacheRig):
    """The rig of the conformance suite, with ``ConvertingCache`` on top.

    Attributes:
        conversion: of all shards; empty: plain ones.
        made_before: whether the sizes of made shards are known.
        facts: what was learned; survives the cache.
    """

    conversion: str = ""
    made_before: bool = True
    facts: ConversionLog = field(default_factory=ConversionLog)
    fetcher: MakingFetcher = field(default_factory=MakingFetcher)

    def shard(self, name: str, size_bytes: int = SHARD_BYTES, etag: str = "v1") -> ObjectRef:
        """Store an object; return it in its form, which is as long."""
        ref = replace(super().shard(name, size_bytes, etag), conversion=Conversion.parse(self.conversion))
        if self.conversion and self.made_before:
            self.facts.note(ref, ConversionFact(size_bytes, size_bytes, "tar"))
        return ref

    @contextlib.asynccontextmanager
    async def open_made(
        self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0
    ) -> AsyncIterator[ConvertingCache]:
        """Open; after it nothing is held."""
        converter = Converter(self.fetcher, make, self.facts, self.recorder, limit_bytes=1 << 30, makings=4)
        options = self.options(capacity, prefetch_fills, deadline_s)
        async with (
            Cache(options, converter, self.recorder, self.clock) as disk,
            ConvertingCache(disk, converter) as cache,
        ):
            yield cache
        for gauge in (CACHE_PINS, CACHE_RESERVED, CACHE_BYTES, CACHE_ENTRIES, PIPELINE_MAKING):
            assert self.recorder.total(gauge) == 0, gauge.name
        assert not self.temp_files()
        assert self.disk_bytes() <= int(capacity * SLOT_BYTES)
        assert not converter.fresh
        assert not cache._acquired

    @contextlib.asynccontextmanager
    async def open(
        self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0
    ) -> AsyncIterator[Cache]:
        """Open one as the conformance suite does."""
        async with self.open_made(capacity, prefetch_fills, deadline_s) as cache:
            yield cast("Cache", cache)  # all that the suite uses of one, this one has too
