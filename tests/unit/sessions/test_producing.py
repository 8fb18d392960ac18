"""Sessions over the real cache and a real worker: every sample once, whatever becomes of the cache."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import shutil
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.cache.directory import DirectoryStorage
from feedd.cache.entry_layout import FORMAT_FOLDER
from feedd.errors import BadShard, CacheTooSmall, ObjectChanged
from feedd.metrics import PIPELINE_BATCH_SECONDS
from feedd.values import Cursor, EpochEnd, Topology
from tests.fakes.feeding import ROOT, Taken, batches, feeding, prefetch_of, rank, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.values import ObjectRef
    from tests.fakes.feeding import Feeding

COUNTS = (5, 0, 7, 1, 6, 3)


def expected(*counts: int) -> list[int]:
    """Return every number of the shards."""
    return [shard * 100 + n for shard, count in enumerate(counts) for n in range(count)]


def _lose(directory: Path, ref: ObjectRef) -> None:
    """Remove a shard's file behind the cache's back."""
    entry_layout.file_path(directory / "cache", ref).unlink()


async def _closed(rig: Feeding) -> None:
    """Wait until the cache has closed the files that no batch reads: open files stay readable when they are deleted."""
    storage = rig.cache._disk._storage
    assert isinstance(storage, DirectoryStorage)
    await until(lambda: not storage._files)


async def test_every_sample_once_over_ranks_and_epochs(tmp_path: Path) -> None:
    """All ranks of a node together get each sample once per epoch, empty shards included, in another order each."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        sessions = [await rig.open(shuffle=True, topology=rank(n, 3)) for n in range(3)]
        orders, made_count = [], 0
        for epoch in range(2):
            parts = await asyncio.gather(*(batches(session, Cursor(epoch)) for session in sessions))
            orders.append([value for part in parts for batch in part for value in batch.ints()])
            assert sorted(orders[-1]) == expected(*COUNTS)
            assert [batch.ready.rows for part in parts for batch in part].count(4) == 5
            made_count += sum(map(len, parts))
        assert rig.recorder.total(PIPELINE_BATCH_SECONDS) >= made_count > 0, "each was timed"
        assert orders[0] != orders[1]


async def test_keys_and_urls_stand_beside_their_samples(tmp_path: Path) -> None:
    """With keys=True each row names its own sample and shard."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        for batch in await batches(await rig.open(shuffle=True, keys=True)):
            for value, key, url in zip(batch.ints(), batch.texts("__key__"), batch.texts("__url__"), strict=True):
                assert key == f"{value // 100:02d}{value % 100:03d}".encode()
                assert url == f"{ROOT}/train/{value // 100:02d}.tar".encode()


async def test_resume_on_a_fresh_daemon_needs_only_what_is_left(tmp_path: Path) -> None:
    """A cursor with its anchor yields the rest of the epoch, without reading shards of windows before it."""
    async with feeding(tmp_path / "one") as rig:
        rig.store.numbers(*[8] * 8)
        whole = await batches(await rig.open())
    async with feeding(tmp_path / "two") as rig:
        rig.store.numbers(*[8] * 8)
        at = whole[12].ready.cursor
        rest = await batches(await rig.open(), at)
        assert [batch.ints() for batch in rest] == [batch.ints() for batch in whole[12:]]
        assert at.anchors == ((6, 48),)


async def test_small_cache_and_drifting_ranks_make_progress(tmp_path: Path) -> None:
    """Ranks far apart in an epoch get everything through a cache that holds no more than one batch's shards."""
    async with feeding(tmp_path, cache_bytes=5 * 20480) as rig:
        rig.store.numbers(*[6] * 10)
        sessions = [await rig.open(shuffle=True, topology=rank(n, 2)) for n in range(2)]
        ahead = await batches(sessions[0])
        behind = await batches(sessions[1])
        again = await asyncio.gather(*(batches(session, Cursor(1)) for session in sessions))
        assert sorted(value for batch in (*ahead, *behind) for value in batch.ints()) == expected(*[6] * 10)
        assert sorted(v for part in again for batch in part for v in batch.ints()) == expected(*[6] * 10)
        assert rig.cache.stats.evictions > 0


async def test_a_batch_that_cannot_fit_says_so(tmp_path: Path) -> None:
    """Where the shards of one batch exceed the cache, that is an error with a hint, not a wait."""
    async with feeding(tmp_path, cache_bytes=3 * 20480) as rig:
        rig.store.numbers(*[1] * 8)
        session = await rig.open(batch_size=8)
        with pytest.raises(CacheTooSmall, match="raise --cache-size"):
            await take(session, Cursor())


async def test_one_batch_of_everything_and_batches_of_one(tmp_path: Path) -> None:
    """A batch larger than the dataset holds all of it; batches of one hold one each."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*COUNTS)
        (everything,) = await batches(await rig.open(batch_size=1000))
        assert everything.ints() == expected(*COUNTS)
        single = await batches(await rig.open(batch_size=1))
        assert [batch.ints() for batch in single] == [[value] for value in expected(*COUNTS)]


async def test_nodes_without_shards_and_shards_without_samples(tmp_path: Path) -> None:
    """A node that gets no shard, and one whose shards are all empty, end at once, with the others' fields."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(3, 0)
        nodes = [await rig.open(topology=Topology(3, n, 1, 0, 3, n)) for n in range(3)]
        assert [session.info.assigned_shard_count for session in nodes] == [1, 1, 0]
        assert len({session.info.fingerprint for session in nodes}) == 1
        assert [len(await batches(session)) for session in nodes] == [1, 0, 0]
        assert await take(nodes[2], Cursor()) == EpochEnd(0, 0)


async def test_oversize_batches_travel_in_memory_of_their_own(tmp_path: Path) -> None:
    """A batch larger than its slot is whole, and leaves neither arena nor descriptor behind."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"bin": b"a" * 10}] * 4)
        rig.store.shard(1, [{"bin": bytes([n]) * 9000} for n in range(4)])
        session = await rig.open(fields=(("bin", "bytes"),))
        small, large = await batches(session)
        assert small.ready.oversize is None
        assert large.ready.oversize is not None
        assert large.texts("bin") == [bytes([n]) * 9000 for n in range(4)]
        assert len(rig.pool._arenas) == 1
        budget = rig.pipeline._budget
        held_bytes = budget.reserved_bytes
        del large
        assert held_bytes - budget.reserved_bytes == 9 * mmap.PAGESIZE, "the batch counts as long as it is held"


async def test_deleted_cache_files_are_fetched_again(tmp_path: Path) -> None:
    """Where the cache directory is emptied under a run, every batch still arrives, each shard fetched once more."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 4)
        session = await rig.open(batch_size=16)
        assert len(await batches(session)) == 1
        shutil.rmtree(tmp_path / "cache" / FORMAT_FOLDER)
        await _closed(rig)
        (batch,) = await batches(session)
        assert batch.ints() == expected(*[4] * 4)
        assert sorted(rig.store.reads) == sorted([f"train/{n:02d}.tar" for n in range(4)] * 2)


async def test_a_damaged_file_costs_one_fetch(tmp_path: Path) -> None:
    """Of a batch's shards only the one whose file went away is fetched again."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 4)
        session = await rig.open(batch_size=16)
        assert len(await batches(session)) == 1
        (gone,) = [ref for ref in session._parts.view.refs if ref.key.endswith("02.tar")]
        _lose(tmp_path, gone)
        await _closed(rig)
        (batch,) = await batches(session)
        assert batch.ints() == expected(*[4] * 4)
        assert rig.store.reads.count("train/02.tar") == 2
        assert len(rig.store.reads) == 5


async def test_a_file_deleted_before_it_was_indexed(tmp_path: Path) -> None:
    """A shard whose file goes away between its arrival and its first look is fetched again, not an error."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 2)
        session = await rig.open()
        (ref,) = [ref for ref in session._parts.view.refs if ref.key.endswith("01.tar")]
        with await rig.cache.acquire([ref]):
            _lose(tmp_path, ref)
        assert len(await batches(session)) == 2


async def test_a_replaced_object_ends_the_run_and_its_listing(tmp_path: Path) -> None:
    """A shard that became another version is said to the run that planned the old one; a new run lists anew."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4, 4)
        rig.store.gates["train/02.tar"] = asyncio.Event()
        session = await rig.open(window_shards=1, batch_size=2)
        assert isinstance(await take(session, Cursor()), Taken)
        old = session.info.fingerprint
        rig.store.shard(2, [{"cls": b"7"}])
        rig.store.gates["train/02.tar"].set()
        with pytest.raises(ObjectChanged, match=r"02\.tar"):
            await batches(session)
        fresh = await rig.open(window_shards=1, batch_size=2)
        assert fresh.info.fingerprint != old
        assert [value for batch in await batches(fresh) for value in batch.ints()][-1] == 7
        with pytest.raises(ObjectChanged, match="fingerprint"):
            await rig.open(window_shards=1, batch_size=2, expect_fingerprint=old)


async def test_a_bad_shard_is_every_production_s_error(tmp_path: Path) -> None:
    """Of several batches in production those before a broken shard arrive, those that need it raise, and pins end."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4)
        rig.store.put("train/02.tar", b"no tar" * 1000)
        session = await rig.open(prefetch_batches=4)
        made = await asyncio.gather(*(take(session, Cursor(0, step)) for step in range(4)), return_exceptions=True)
        assert [type(each) for each in made] == [Taken, Taken, BadShard, BadShard]


async def test_cancelled_productions_hold_nothing(tmp_path: Path) -> None:
    """Productions that are cancelled while their shards arrive leave no pin, and the session can go on."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4)
        rig.store.gates["train/01.tar"] = asyncio.Event()
        session = await rig.open()
        running = [asyncio.ensure_future(take(session, Cursor(0, step))) for step in range(2)]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        running[1].cancel()
        await asyncio.wait(running)
        assert running[1].cancelled()
        assert prefetch_of(session)._arena.taken_count == 0
        rig.store.gates["train/01.tar"].set()
        assert list(itertools.chain(*[batch.ints() for batch in await batches(session)])) == expected(4, 4)
