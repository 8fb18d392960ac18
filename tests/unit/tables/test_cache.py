"""Shards that are made of objects: once, of the right version, in bounded memory, and nothing left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.entry_layout import disk_bytes
from feedd.cache.pins import with_pinned
from feedd.conversion import Conversion, text_of
from feedd.errors import (
    CacheTooSmall,
    CacheUnavailable,
    Draining,
    NotFound,
    ObjectChanged,
    ResourceExhausted,
    StoreUnavailable,
)
from feedd.flow.pools import LOCAL_FILES
from feedd.metrics import PIPELINE_MADE, PIPELINE_MADE_BYTES, PIPELINE_MADE_SECONDS, PIPELINE_MAKING
from feedd.tables.cache import ConvertingCache
from feedd.tables.converter import Converter, formed
from feedd.tables.facts import ConversionFact, ConversionLog
from feedd.tables.objects import joined
from feedd.values import ByteRange, ObjectRef
from tests.fakes.caches import SHARD_BYTES
from tests.fakes.fetchers import ROOT, until
from tests.fakes.forms import FORM, MadeRig, make, same_form
from tests.fakes.next_uses import note_next_use
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.values import ShardFile


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MadeRig]:
    """A cache whose shards nobody has made yet."""
    with same_form():
        yield MadeRig(tmp_path / "cache", conversion=FORM, made_before=False, facts=ConversionLog(tmp_path / "made"))


async def test_what_was_never_made_is_made_once(rig: MadeRig) -> None:
    """However many ask, each object is fetched and made once; the files say by which format they are indexed."""
    refs = [*rig.shards(7), rig.shard("empty", 0), rig.shard("odd", 5001)]
    async with rig.open_made() as cache:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(cache.acquire(refs)) for _ in range(5)]
        for task in tasks:
            with task.result() as pins:
                rig.check(pins, refs)
                assert {file.format for file in pins.files} == {"tar"}
        with await cache.acquire(refs[::-1]) as pins:
            rig.check(pins, refs[::-1])
    assert set(rig.fetcher.calls.values()) == {1}
    assert rig.fetcher.calls["empty"] == 0
    assert rig.recorder.total(PIPELINE_MADE) == len(refs)
    assert rig.recorder.total(PIPELINE_MADE_BYTES) == 7 * SHARD_BYTES + 5001
    assert rig.recorder.total(PIPELINE_MADE_SECONDS) > 0


async def test_sizes_outlive_the_daemon(rig: MadeRig, tmp_path: Path) -> None:
    """After a start what was made before is found; without the file of sizes it is made again."""
    refs = rig.shards(3)
    async with rig.open_made() as cache:
        (await cache.acquire(refs)).release()
    for path in (tmp_path / "made", None):
        rig.facts = ConversionLog(path)
        async with rig.open_made() as cache:
            assert len(cache.entries()) == 3
            assert {entry.conversion for entry in cache.entries()} == {FORM}
            with await cache.acquire(refs) as pins:
                rig.check(pins, refs)
            assert len(cache.entries()) == 3
        assert rig.fetcher.calls.total() == (3 if path else 6)


async def test_wishes_are_made_in_order_and_wait_in_the_cache(rig: MadeRig) -> None:
    """What is wished for comes without being asked for, the first wish first, plain and made ones alike."""
    refs = rig.shards(6)
    refs[2] = replace(refs[2], conversion=None)
    async with rig.open_made(prefetch_fills=1) as cache:
        cache.prefetch(refs, "me")
        await until(lambda: len(cache.entries()) == 6)
        assert all(cache.knows(ref) for ref in refs)
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert set(rig.fetcher.calls.values()) == {1}
    converted = [key for key in rig.fetcher.order if key != refs[2].key]
    assert all(pair == sorted(pair) for pair in (converted[:2], converted[2:4], converted[4:]))
    assert set(converted[:2]) == {refs[0].key, refs[1].key}


async def test_withdrawn_wishes_are_not_made(rig: MadeRig) -> None:
    """An empty list ends makings that nobody else waits for; one that somebody acquires goes on."""
    lonely, shared = rig.shards(2)
    rig.fetcher.hold(lonely, shared)
    async with rig.open_made() as cache:
        cache.prefetch([lonely, shared], "me")
        await until(lambda: len(rig.fetcher.running) == 2)
        waiting = asyncio.ensure_future(cache.acquire([shared]))
        await until(lambda: cache._acquired[shared])
        await asyncio.sleep(0)
        cache.prefetch([], "me")
        await until(lambda: rig.fetcher.cancelled[lonely.key])
        rig.fetcher.release(shared)
        with await waiting as pins:
            rig.check(pins, [shared])
    assert rig.fetcher.calls == {lonely.key: 1, shared.key: 1}
    assert not rig.fetcher.cancelled[shared.key]


async def test_a_cancelled_acquire_leaves_nothing(rig: MadeRig) -> None:
    """Whoever goes away while a shard is made takes memory, pins and the making with him."""
    refs = rig.shards(3)
    rig.fetcher.hold(*refs)
    async with rig.open_made() as cache:
        waiting = asyncio.ensure_future(cache.acquire(refs))
        await until(lambda: rig.fetcher.running)
        assert rig.recorder.total(PIPELINE_MAKING) > 0
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: not rig.fetcher.running)
        await until(lambda: not rig.recorder.total(PIPELINE_MAKING))
        assert not cache.entries()


async def test_closing_ends_makings(rig: MadeRig) -> None:
    """A cache that is closed sends those who wait for a making away."""
    refs = rig.shards(2)
    rig.fetcher.hold(*refs)
    async with rig.open_made() as cache:
        waiting = asyncio.ensure_future(cache.acquire(refs))
        cache.prefetch(refs, "me")
        await until(lambda: rig.fetcher.running)
        await cache.close()
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await cache.acquire(refs)
        cache.prefetch(refs, "me")


async def test_failures_are_told_and_forgotten(rig: MadeRig) -> None:
    """What fetching raises is what the acquirer gets, with the object's URL; the next one tries anew."""
    (ref,) = rig.shards(1)
    rig.fetcher.fail(ref, ObjectChanged("expected v1, got v2"), ObjectChanged("expected v1, got v2"))
    async with rig.open_made() as cache:
        cache.prefetch([ref], "me")  # its failure is nobody's
        await until(lambda: rig.fetcher.calls[ref.key] == 1 and not rig.fetcher.running)
        with pytest.raises(ObjectChanged) as caught:
            await cache.acquire([ref])
        assert caught.value.object == ref.url
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
        with pytest.raises(NotFound):
            await cache.acquire([ObjectRef(ROOT, "gone", 5, "v1", Conversion(FORM))])


async def test_next_uses_told_before_the_making_count(rig: MadeRig) -> None:
    """A shard's next use is known to the cache as soon as it is made."""
    a, b, c = rig.shards(3)
    async with rig.open_made(2) as cache:
        note_next_use(cache, [(a, 30.0), (b, 10.0), (c, 20.0)])
        for ref in (a, b, c):
            (await cache.acquire([ref])).release()
        assert {entry.url for entry in cache.entries()} == {b.url, c.url}
        note_next_use(cache, [(b, float("inf"))])
        (await cache.acquire([a])).release()
        assert {entry.url for entry in cache.entries()} == {a.url, c.url}


async def test_a_shard_larger_than_the_cache_is_told(rig: MadeRig) -> None:
    """What can never fit is an error with the shard's size, not an endless wait."""
    ref = rig.shard("large", 10 * SHARD_BYTES)
    async with rig.open_made(2) as cache:
        with pytest.raises(CacheTooSmall):
            await cache.acquire([ref])
        with pytest.raises(CacheTooSmall):
            await cache.acquire([ref, rig.shard("other")])


async def test_another_size_than_before_is_made_anew(rig: MadeRig) -> None:
    """Where what was remembered is wrong, longer or shorter, it is forgotten and the shard made again."""
    for name, wrong in (("short", SHARD_BYTES - 1), ("long", SHARD_BYTES + 1)):
        ref = rig.shard(name)
        rig.facts.note(ref, ConversionFact(SHARD_BYTES, wrong, "tar"))
        async with rig.open_made() as cache:
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])

            rig.facts.note(ref, ConversionFact(SHARD_BYTES, SHARD_BYTES + 7, "tar"))

            async def seen(files: tuple[ShardFile, ...]) -> int:
                return files[0].ref.size_bytes

            assert await with_pinned(cache, [ref], seen) == SHARD_BYTES


async def test_parts_of_an_object_are_enough(rig: MadeRig) -> None:
    """A form that asks for ranges gets those, one answer after the other."""
    rig.conversion = f"{FORM}:halves"
    refs = [*rig.shards(2), rig.shard("one", 1)]
    async with rig.open_made() as cache:
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
        await cache.discard(refs[0])
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert rig.fetcher.calls == {refs[0].key: 4, refs[1].key: 2, "one": 1}


async def test_no_memory_is_an_error(rig: MadeRig) -> None:
    """Nothing is fetched where memory would not do; the error says so."""
    ref = rig.shard("a")
    for left, fetched in ((1 << 20, 0), ((256 << 20) + 2 * SHARD_BYTES, 1)):
        recorder = TallyRecorder()
        available = partial(int, left)
        converter = Converter(
            rig.fetcher, make, ConversionLog(), recorder, limit_bytes=1 << 30, makings=1, available=available
        )
        if not fetched:
            with pytest.raises(ResourceExhausted, match="memory"):
                await converter.bring(ref, lambda: 0.0)
        else:
            await converter.bring(ref, lambda: 0.0)
            assert recorder.total(PIPELINE_MAKING) == SHARD_BYTES
            converter.fresh.keep_only(lambda _: False)
        assert recorder.total(PIPELINE_MAKING) == 0
        assert rig.fetcher.calls[ref.key] == fetched


async def test_a_making_has_a_deadline(rig: MadeRig) -> None:
    """A making whose object never comes ends, and holds nothing."""
    ref = rig.shard("a")
    rig.fetcher.hold(ref)
    converter = Converter(rig.fetcher, make, ConversionLog(), rig.recorder, limit_bytes=1 << 30, deadline_s=0.05)
    with pytest.raises(StoreUnavailable, match="conversion to end within"):
        await converter.bring(ref, lambda: 0.0)
    assert rig.recorder.total(PIPELINE_MAKING) == 0
    assert not rig.fetcher.running


async def test_a_quota_bounds_what_is_made(rig: MadeRig) -> None:
    """Made shards count against the quota of their prefix, with the bytes they have there; others have their room."""
    refs = [rig.shard(f"{folder}/{n}") for folder in ("a", "b") for n in range(3)]
    converter = Converter(rig.fetcher, make, rig.facts, rig.recorder, limit_bytes=1 << 30)
    options = replace(rig.options(), quotas={f"{ROOT}/a/": 2 * disk_bytes(refs[0])})
    async with (
        Cache(options, converter, rig.recorder, rig.clock) as disk,
        ConvertingCache(disk, converter) as cache,
    ):
        with pytest.raises(CacheTooSmall, match="quota"):
            await cache.acquire(refs[:3])
        with await cache.acquire(refs[:2]):
            waiting = asyncio.ensure_future(cache.acquire([refs[2]]))
            with await cache.acquire(refs[3:]) as pins:  # nobody outside the quota waits for who is inside
                rig.check(pins, refs[3:])
            assert not waiting.done()
        with await waiting as pins:
            rig.check(pins, [refs[2]])
        assert sum("/a/" in entry.url for entry in cache.entries()) == 2
    assert rig.recorder.total(PIPELINE_MAKING) == 0


async def test_a_shard_of_unknown_origin_is_refused(rig: MadeRig) -> None:
    """An entry nobody has listed cannot be made again; that says so instead of guessing."""
    converter = Converter(rig.fetcher, make, ConversionLog(), rig.recorder, limit_bytes=1 << 30)
    with pytest.raises(CacheUnavailable):
        await converter.fetch(rig.shard("a"), into(bytearray(SHARD_BYTES)))


async def test_the_form_is_part_of_the_entry(rig: MadeRig) -> None:
    """The object itself and what was made of it lie beside each other, told apart also after a start."""
    converted = rig.shard("a")
    plain = replace(converted, conversion=None)
    assert disk_bytes(converted) >= disk_bytes(plain)
    for _ in range(2):
        async with rig.open_made() as cache:
            with await cache.acquire([converted, plain]) as pins:
                rig.check(pins, [converted, plain])
            assert sorted(entry.conversion for entry in cache.entries()) == ["", FORM]
    assert rig.fetcher.calls["a"] == 2
    async with rig.open_made() as cache:
        await cache.discard(converted)
        assert [entry.conversion for entry in cache.entries()] == [""]
        (await cache.acquire([converted])).release()
        rig.facts.note(converted, ConversionFact(1, SHARD_BYTES, "tar"))
        await cache.discard(converted)  # by the name it has in the cache
        assert [entry.conversion for entry in cache.entries()] == [""]


def test_listed_objects_get_their_form() -> None:
    """Packed objects are read unpacked; others as they lie."""
    names = {"a.tar": "", "b.tar.gz": "gunzip", "c.TGZ": "gunzip", "d.mds.zstd": "unzstd", "e.tar.lz4": "", "gz": ""}
    refs = [ObjectRef(ROOT, name, 5, "v1") for name in names]
    assert [text_of(ref.conversion) for ref in formed(refs)] == list(names.values())
    assert [replace(ref, conversion=None) for ref in formed(refs)] == refs


def test_spans_that_touch_are_one() -> None:
    """Spans come in order, and no two of them touch."""
    spans = [ByteRange(8, 9), ByteRange(0, 2), ByteRange(2, 4), ByteRange(3, 5), ByteRange(6, 8)]
    assert joined(spans) == (ByteRange(0, 5), ByteRange(6, 9))


def test_half_a_line_of_facts_is_no_fact(tmp_path: Path) -> None:
    """A file cut anywhere gives the facts before the cut; one with many old rows is written anew."""
    path = tmp_path / "made"
    refs = [ObjectRef(ROOT, f"ä{n}.gz", n, "v1", Conversion("gunzip")) for n in range(3)]
    facts = ConversionLog(path)
    for again in range(3):
        for ref in refs:
            fact = ConversionFact(ref.size_bytes, again, "tar")
            assert facts.note(ref, fact)
            facts.keep(ref, fact)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for cut in range(len(data) - len(lines[-1]), len(data) - 1):
        path.write_bytes(data[:cut])
        found = ConversionLog(path)
        found.load()
        assert [found.known(ref) for ref in refs] == [ConversionFact(n, 2 if n < 2 else 1, "tar") for n in range(3)]
    path.write_bytes(data)
    ConversionLog(path).load()
    assert len(path.read_bytes().splitlines()) == 3
    found = ConversionLog(path)
    found.load()
    assert found.converted(refs[1]) == replace(refs[1], size_bytes=2)
    path.write_bytes(b"\xff\xfe\n{}\n")
    ConversionLog(path).load()


async def test_making_again_has_a_deadline(rig: MadeRig) -> None:
    """As the first making has."""
    ref = rig.shard("a")
    rig.facts.note(ref, ConversionFact(ref.size_bytes, ref.size_bytes, "tar"))
    rig.fetcher.hold(ref)
    converter = Converter(rig.fetcher, make, rig.facts, rig.recorder, limit_bytes=1 << 30, deadline_s=0.05)
    with pytest.raises(StoreUnavailable, match="conversion to end within"):
        await asyncio.wait_for(converter.fetch(ref, into(bytearray(ref.size_bytes))), 5)
    assert rig.recorder.total(PIPELINE_MAKING) == 0
    assert not rig.fetcher.running


async def test_an_object_in_the_cache_is_not_fetched_for_what_is_made_of_it(rig: MadeRig) -> None:
    """For the first making, of all of it or of parts, and where what was made has gone: one GET in all."""
    ref = rig.shard("a")
    async with rig.open_made() as cache:
        with await cache.acquire([replace(ref, conversion=None)]):
            pass
        for form in (Conversion(FORM), Conversion(FORM, "halves")):
            for _ in range(2):
                with await cache.acquire([replace(ref, conversion=form)]) as pins:
                    rig.check(pins, [replace(ref, conversion=form)])
                await cache.discard(replace(ref, conversion=form))
        assert rig.fetcher.calls[ref.key] == 1
        assert rig.recorder.total(PIPELINE_MADE) == 4
        await cache.discard(replace(ref, conversion=None))
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
        assert rig.fetcher.calls[ref.key] == 2


async def test_an_object_that_goes_from_the_disk_is_fetched(rig: MadeRig) -> None:
    """Under the cache's feet: what is made of it is right all the same."""
    ref = rig.shard("a")
    async with rig.open_made() as cache:
        with await cache.acquire([replace(ref, conversion=None)]) as pins:
            await LOCAL_FILES.run(Path(pins.files[0].path).unlink)
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])
