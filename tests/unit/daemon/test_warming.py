"""Warming: what a node would read comes in while there is room, and nobody has to go for it."""

from __future__ import annotations

import asyncio
import gzip
import io
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.cache.cache import Cache
from feedd.cache.entry_layout import disk_bytes
from feedd.cache.options import CacheOptions
from feedd.catalog.sources import Sources
from feedd.catalog.stages import PipelineOptions
from feedd.clock import SystemClock
from feedd.daemon.warm_up import WarmBounds, Warmer
from feedd.errors import BadRecipe, BadRequest, CacheTooSmall, FeeddError, NotFound
from feedd.fetch.fetch_options import SourceOptions
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionLog
from feedd.values import ObjectRef
from feedd.warming import Amount, WarmProgress, WarmSpec
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions
from tests.fakes.feeding import ROOT, GatedStore, batches, feeding
from tests.fakes.fetchers import until
from tests.fakes.tally import TallyRecorder
from tests.fakes.thread_worker import cheap_workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.catalog.url_listing import Resolved
    from feedd.values import ShardFile

SIZE = 5000
PREFIX = f"{ROOT}/train/"
NAMED = f"tar+{PREFIX}"  # its objects' names say nothing, and nobody is to look at their first bytes
TWO_BYTES = 2 * disk_bytes(ObjectRef(ROOT, "train/a", SIZE, "etag"))  # of disk, for two objects


@dataclass
class Rig:
    """An open cache over a bucket in memory, and all that was told."""

    store: GatedStore
    cache: Cache
    warmer: Warmer
    told: list[WarmProgress] = field(default_factory=list)
    errors: list[FeeddError] = field(default_factory=list)

    def put(self, *names: str) -> list[ObjectRef]:
        """Store objects of one size, each of its own bytes."""
        return [self.store.put(f"train/{name}", name.encode() * (SIZE // len(name))) for name in names]

    def tell(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        """Take note."""
        self.told.append(progress)
        if failure is not None:
            self.errors.append(failure)

    async def warm(self, *urls: str, **options: object) -> WarmProgress:
        """Warm the prefix, unless told otherwise."""
        return await self.warmer.warm(WarmSpec(urls or (NAMED,), **options), self.tell)  # type: ignore[arg-type]  # the caller's to get right

    def held(self) -> set[str]:
        """Names of what is in the cache."""
        return {entry.url.removeprefix(PREFIX) for entry in self.cache.entries()}


@asynccontextmanager
async def warming(
    directory: Path, *, cache_bytes: int = 1 << 20, bounds: WarmBounds | None = None
) -> AsyncIterator[Rig]:
    """Open a cache; at the end nothing is pinned, reserved or waiting. No read is hedged, as in ``feeding``."""
    recorder, clock, store = TallyRecorder(), SystemClock(), GatedStore()
    options = CacheOptions(directory / "cache", cache_bytes, free_reserve_bytes=0)
    async with Sources(SourceOptions(hedge_share=0), recorder, clock) as sources:
        sources.buckets.use(store)
        with cheap_workers():
            async with DecodePool(DecodeOptions(), recorder) as pool:
                converter = Converter(sources.fetcher, pool.make, ConversionLog(), recorder, limit_bytes=cache_bytes)
                async with (
                    Cache(options, converter, recorder, clock) as cache,
                    ConvertingCache(cache, converter) as front,
                ):
                    yield Rig(store, cache, Warmer(sources, front, bounds or WarmBounds()))
            stats = cache.stats
            assert (stats.pin_count, stats.reserved_bytes, stats.waiting_count) == (0, 0, 0)


def _content(file: ShardFile) -> bytes:
    return Path(file.path).read_bytes()[file.data_at :]


def _amount(count: int) -> Amount:
    return Amount(count, count * SIZE)


async def test_everything_comes_once(tmp_path: Path) -> None:
    """Objects of several URLs come once each, as they are in the store; a second warming reads nothing."""
    async with warming(tmp_path) as rig:
        refs = rig.put("a", "b", "c")
        done = await rig.warm(NAMED, f"{NAMED}a")
        assert done == WarmProgress(_amount(3), warmed=_amount(3))
        assert rig.held() == {"a", "b", "c"}
        with await rig.cache.acquire(refs) as pins:
            assert [_content(file) for file in pins.files] == [rig.store._objects[ref.key] for ref in refs]
        reads = list(rig.store.reads)
        assert await rig.warm() == WarmProgress(_amount(3), present=_amount(3))
        assert rig.store.reads == reads


async def test_it_is_the_nodes_assignment(tmp_path: Path) -> None:
    """With nodes named exactly the objects of the plan come, in its order."""
    async with warming(tmp_path, bounds=WarmBounds(objects=1)) as rig:
        rig.put("a", "b", "c", "d", "e")
        done = await rig.warm(node_count=2, node_rank=1)
        assert done.warmed == _amount(2)
        assert rig.store.reads == ["train/b", "train/d"]
        await rig.warm(node_count=2, node_rank=0, sharding="replicated")
        assert rig.held() == set("abcde")
        with pytest.raises(BadRequest):
            await rig.warm(sharding="rows")


async def test_too_small_a_cache_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    """Where not all fits it is an error that counts what would; with ``fit`` that much comes, in the order."""
    async with warming(tmp_path, cache_bytes=TWO_BYTES) as rig:
        rig.put("a", "b", "c")
        with pytest.raises(CacheTooSmall, match="2 of 3 objects would fit"):
            await rig.warm()
        assert not rig.store.reads
        done = await rig.warm(fit=True)
        assert done == WarmProgress(_amount(3), warmed=_amount(2), left_out=_amount(1))
        assert rig.held() == {"a", "b"}


async def test_what_no_name_says_is_warmed_as_it_is_read(tmp_path: Path) -> None:
    """First bytes tell the form, as they tell a session; where the object is gone the others come as they are."""
    async with warming(tmp_path) as rig:
        rig.store.put("train/part-0", gzip.compress(b'{"a": 1}\n'))
        await rig.warm(PREFIX)
        assert [entry.conversion for entry in rig.cache.entries()] == ["gunzip"]
        rig.put("a", "b")

        async def vanish(*_: object, **__: object) -> Resolved:
            found = await resolve([PREFIX])
            rig.store.delete("train/a")
            return found

        sources = rig.warmer._sources
        resolve = sources.resolve_all
        sources.resolve_all = vanish  # type: ignore[method-assign]  # gone between listing and fetching
        done = await rig.warm(PREFIX)
        assert (done.failed, done.warmed.object_count) == (_amount(1), 2)


async def test_nobody_has_to_go(tmp_path: Path) -> None:
    """What lies in the cache stays, whether its next use is known or not."""
    async with warming(tmp_path, cache_bytes=TWO_BYTES) as rig:
        other = rig.store.put("other/x", b"x" * SIZE)
        (await rig.cache.acquire([other])).release()
        refs = rig.put("a", "b")
        done = await rig.warm(fit=True)
        assert (done.warmed, done.left_out) == (_amount(1), _amount(1))
        assert {entry.url for entry in rig.cache.entries()} == {other.url, refs[0].url}
        assert rig.cache.stats.evictions == 0


async def test_room_that_goes_meanwhile_is_told(tmp_path: Path) -> None:
    """Room a session takes while the warming runs is the session's: the rest is left out, not squeezed in."""
    async with warming(tmp_path, cache_bytes=TWO_BYTES, bounds=WarmBounds(objects=1)) as rig:
        rig.put("a", "b")
        session = rig.store.put("other/x", b"x" * SIZE)
        rig.store.gates["train/a"] = asyncio.Event()
        run = asyncio.ensure_future(rig.warm())
        await until(lambda: rig.store.reads)
        pins = await rig.cache.acquire([session])
        rig.store.gates["train/a"].set()
        done = await run
        pins.release()
        assert (done.warmed, done.left_out) == (_amount(1), _amount(1))
        assert rig.cache.stats.evictions == 0


async def test_each_error_is_named_and_the_rest_comes(tmp_path: Path) -> None:
    """Objects that cannot be had are told one by one; the others come."""
    async with warming(tmp_path) as rig:
        rig.put("a", "b", "c")

        async def vanish(*_: object, **__: object) -> Resolved:
            found = await resolve([NAMED])
            for name in ("a", "c"):
                rig.store.delete(f"train/{name}")
            return found

        sources = rig.warmer._sources
        resolve = sources.resolve_all
        sources.resolve_all = vanish  # type: ignore[method-assign]  # gone between listing and fetching
        done = await rig.warm()
        assert (done.failed, done.warmed) == (_amount(2), _amount(1))
        assert sorted(error.object for error in rig.errors) == [f"{PREFIX}a", f"{PREFIX}c"]
        assert {type(error) for error in rig.errors} == {NotFound}
        assert rig.held() == {"b"}


async def test_progress_adds_up(tmp_path: Path) -> None:
    """Every change is told, from what was there to the end, and no object is counted twice."""
    async with warming(tmp_path) as rig:
        refs = rig.put("a", "b", "c")
        (await rig.cache.acquire(refs[:1])).release()
        done = await rig.warm()
        assert rig.told[0] == WarmProgress(_amount(3), present=_amount(1))
        assert [one.warmed.object_count for one in rig.told] == [0, 1, 2]
        assert rig.told[-1] == done


async def test_stopped_it_keeps_what_is_whole(tmp_path: Path) -> None:
    """Cancelled, fills that nobody else wants stop and leave nothing; one that a session waits for goes on."""
    async with warming(tmp_path) as rig:
        refs = rig.put("a", "b", "c")
        for name in ("b", "c"):
            rig.store.gates[f"train/{name}"] = asyncio.Event()
        run = asyncio.ensure_future(rig.warm())
        await until(lambda: rig.held() == {"a"} and len(rig.store.reads) == 3)
        session = asyncio.ensure_future(rig.cache.acquire([refs[1]]))
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait((run,))
        assert run.cancelled()
        await until(lambda: rig.cache.stats.reserved_bytes == disk_bytes(refs[1]))
        rig.store.gates["train/b"].set()
        (await session).release()
        assert rig.held() == {"a", "b"}


async def test_little_is_under_way_at_one_time(tmp_path: Path) -> None:
    """No more objects are fetched at one time than allowed, and large ones only two by two."""
    async with warming(tmp_path, bounds=WarmBounds(objects=4, size_bytes=SIZE)) as rig:
        rig.put("a", "b", "c", "d", "e")
        for name in "abcde":
            rig.store.gates[f"train/{name}"] = asyncio.Event()
        run = asyncio.ensure_future(rig.warm())
        await until(lambda: len(rig.store.reads) == 2)
        for name in "abcde":
            await asyncio.sleep(0.01)
            assert len(rig.store.reads) <= "abcde".index(name) + 2
            rig.store.gates[f"train/{name}"].set()
        assert (await run).warmed == _amount(5)


async def test_of_columns_those_are_warmed_that_a_session_reads(tmp_path: Path) -> None:
    """With the same fields it then fetches nothing; types are those of the first object for all nodes alike."""
    async with feeding(tmp_path, cache_bytes=64 << 20) as rig:
        sink = io.BytesIO()
        pq.write_table(pa.table({"n": [1, 2, 3], "other": ["x" * 9] * 3}), sink)
        for shard in range(2):
            rig.store.put(f"train/{shard}.parquet", sink.getvalue())
            rig.store.put(f"texts/{shard}.csv", b"n,m\n%d,2\n" % shard)
        warmer = Warmer(rig.pipeline.stages.sources, rig.pipeline.cache, WarmBounds())
        for folder, field, forms in (
            ("train", "int", {'parquet:[["n"]]'}),
            # the first object as it came told the types, and was not fetched again to be made a table
            ("texts", "float", {'csv:{"columns":[["n"]],"types":{"n":"double"}}', "csv:types", ""}),
        ):
            urls, fields = (f"{ROOT}/{folder}/",), (("n", field),)
            done = await warmer.warm(WarmSpec(urls, fields=fields), lambda *_: None)
            assert (done.warmed.object_count, done.failed.object_count) == (2, 0)
            assert {entry.conversion for entry in rig.cache.entries() if folder in entry.url} == forms
            read = len(rig.store.reads)
            assert folder == "train" or rig.store.reads.count(f"{folder}/0.csv") == 1
            assert await batches(await rig.open(urls=urls, fields=fields))
            assert len(rig.store.reads) == read
            again = await warmer.warm(WarmSpec(urls, fields=fields), lambda *_: None)
            assert again.present.object_count == 2
        with pytest.raises(BadRecipe):
            await warmer.warm(WarmSpec((PREFIX,), fields=(("n", "nothing"),)), lambda *_: None)
        await warmer.warm(WarmSpec((PREFIX,)), lambda *_: None)
        assert "parquet" in {entry.conversion for entry in rig.cache.entries()}


async def test_of_a_large_file_the_spans_are_warmed_that_a_session_reads(tmp_path: Path) -> None:
    """With the recipe of the session; without one nobody knows where the file is cut, which is an error."""
    async with feeding(tmp_path, options=PipelineOptions(span_bytes=4096)) as rig:
        rig.store.put("train/a.bin", bytes(40_000))
        rig.store.put("train/b.bin", bytes(4000))
        warmer = Warmer(rig.pipeline.stages.sources, rig.pipeline.cache, WarmBounds(), span_bytes=4096)
        fields = (("tokens", "tokens:uint16:65"),)
        done = await warmer.warm(WarmSpec((PREFIX,), node_count=2, node_rank=1, fields=fields), lambda *_: None)
        assert done.warmed.object_count == 5
        await warmer.warm(WarmSpec((PREFIX,), fields=fields), lambda *_: None)
        read = rig.store.reads.count("train/a.bin")
        session = await rig.open(fields=fields)
        assert session.info.shard_count == 9 + 1
        assert await batches(session)
        assert rig.store.reads.count("train/a.bin") == read + 1  # its first bytes, when it was listed
        with pytest.raises(BadRecipe, match="how a large file of tokens is cut") as caught:
            await warmer.warm(WarmSpec((PREFIX,)), lambda *_: None)
        assert caught.value.object == f"{PREFIX}a.bin"
        assert "--field tokens=" in str(caught.value.hint)
