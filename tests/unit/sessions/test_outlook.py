"""What the cache is told of the future: wishes ahead of each reader, and when each shard is needed next."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from feedd.sessions import prefetch_driver
from feedd.values import Cursor
from tests.fakes.feeding import Feeding, Taken, batches, feeding, rank, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHARD_BYTES = 4096 + 12288  # header and 4 samples on disk


TAR_BYTES = 10240


def _next_uses(rig: Feeding, folder: str = "train") -> dict[str, float]:
    """When each shard is due, in shards of equal size instead of bytes."""
    known = rig.cache._disk.index.next_uses
    assert known is not None
    listed = [ref for listing in rig.pipeline.catalog._listings.values() for ref in listing.refs]
    uses = dict(zip(listed, known(listed), strict=True))
    for entry in rig.cache._disk.index:
        assert entry.next_use == uses.get(entry.ref, math.inf), "the cache was told of every change"
    return {
        ref.key[-6:-4]: time / TAR_BYTES for ref, time in uses.items() if time < math.inf and ref.key.startswith(folder)
    }


async def test_positions_follow_the_epochs(tmp_path: Path) -> None:
    """Shards of windows that every reader has left move to their place in the next epoch, the others stay."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one, two = [await rig.open(topology=rank(n, 2)) for n in range(2)]
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}
        await batches(one)
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}
        await batches(two)
        assert _next_uses(rig) == {**{f"{n:02d}": float(n + 6) for n in range(4)}, "04": 4.0, "05": 5.0}


async def test_a_reader_that_leaves_holds_nobody_back(tmp_path: Path) -> None:
    """When the slowest reader goes, what only it still needed is due in the next epoch."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one, two = [await rig.open(topology=rank(n, 2)) for n in range(2)]
        await batches(one)
        await rig.close(two)
        assert _next_uses(rig) == {**{f"{n:02d}": float(n + 6) for n in range(4)}, "04": 4.0, "05": 5.0}


async def test_what_is_wanted_again_is_due_again(tmp_path: Path) -> None:
    """Shards of windows that were left are due in this epoch again when a reader comes that starts before them."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one = await rig.open()
        await batches(one)
        assert _next_uses(rig) == {**{f"{n:02d}": float(n + 6) for n in range(5)}, "05": 5.0}
        await rig.open()
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}
        await batches(one, Cursor(0, 2, ((2, 8),)))
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}


async def test_the_last_reader_takes_the_positions_with_it(tmp_path: Path) -> None:
    """A dataset nobody reads any more is in nobody's way: its shards have no next use, and nothing is remembered."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one, two = await rig.open(shuffle=True), await rig.open(shuffle=True, seed=1)
        await batches(one)
        await rig.close(one)
        assert len(_next_uses(rig)) == 6
        await rig.close(two)
        assert _next_uses(rig) == {}
        assert all(entry.next_use == math.inf for entry in rig.cache._disk.index)


async def test_a_dataset_of_the_past_gives_way(tmp_path: Path) -> None:
    """What a closed session left in a full cache is evicted for the wishes of the next one."""
    async with feeding(tmp_path, cache_bytes=8 * SHARD_BYTES) as rig:
        rig.store.numbers(*[4] * 8)
        await batches(session := await rig.open())
        await rig.close(session)
        for number in range(8):
            rig.store.put(f"other/{number:02d}.tar", rig.store._objects[f"train/{number:02d}.tar"])
        await rig.open(urls=("s3://memory/other/",), epoch=7)
        await until(lambda: len([key for key in rig.store.reads if key.startswith("other/")]) == 8)


async def test_the_end_of_an_epoch_does_not_cancel_what_it_waits_for(tmp_path: Path) -> None:
    """The batch that enters the last window joins the fills that were started ahead for it."""
    async with feeding(tmp_path, cache_bytes=4 * SHARD_BYTES) as rig:
        rig.store.numbers(*[4] * 4)
        session = await rig.open()
        await batches(session)
        for ref in session._parts.view.refs:
            await rig.cache.discard(ref)
        rig.store.reads.clear()
        rig.store.gates["train/03.tar"] = asyncio.Event()
        assert isinstance(await take(session, Cursor(1, 0)), Taken)
        await until(lambda: "train/03.tar" in rig.store.reads)
        last = asyncio.ensure_future(take(session, Cursor(1, 3)))
        for _ in range(20):
            await asyncio.sleep(0)
        rig.store.gates["train/03.tar"].set()
        assert isinstance(await last, Taken)
        assert rig.store.reads.count("train/03.tar") == 1


async def test_a_pass_begun_again_is_read_ahead_again(tmp_path: Path) -> None:
    """A session that goes back in its epoch wishes for what it will need, as at its first pass."""
    async with feeding(tmp_path, cache_bytes=64 * SHARD_BYTES) as rig:
        rig.store.numbers(*[4] * 8)
        session = await rig.open()
        await batches(session)
        for ref in session._parts.view.refs:
            await rig.cache.discard(ref)
        rig.store.reads.clear()
        assert isinstance(await take(session, Cursor()), Taken)
        await until(lambda: len(rig.store.reads) == 8)


async def test_one_listing_told_twice_is_one_crowd(tmp_path: Path) -> None:
    """Readers that listed the same objects at different times wait for each other."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one = await rig.open(topology=rank(0, 2))
        rig.pipeline.catalog.forget(one._parts.view.listing)
        await rig.open(topology=rank(1, 2))
        await batches(one)
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}


async def test_windows_of_another_size_are_another_crowd(tmp_path: Path) -> None:
    """Readers of one order whose windows differ count apart: what one is past, the other may still need."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 12)
        narrow = await rig.open(shuffle=True, window_shards=1)
        wide = await rig.open(shuffle=True, window_shards=4)
        order = [f"{shard:02d}" for shard in narrow._parts.reader.orders(Cursor())[0]]
        assert order == [f"{shard:02d}" for shard in wide._parts.reader.orders(Cursor())[0]]
        for step in range(5):
            await take(narrow, Cursor(0, step))
        for step in range(9):
            await take(wide, Cursor(0, step))
        uses = _next_uses(rig)
        left, wanted = [uses[shard] for shard in order[:4]], [uses[shard] for shard in order[4:]]
        assert max(wanted) < min(left), "the narrow one stands at the fifth shard, and wants it and those behind it"
        assert wanted[:4] == sorted(wanted[:4])


async def test_resuming_further_on_drops_what_was_read_ahead(tmp_path: Path) -> None:
    """An open cannot know where its stream begins: what it wished for ends when the stream begins elsewhere."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 60)
        for number in range(1, 20):
            rig.store.gates[f"train/{number:02d}.tar"] = asyncio.Event()
        session = await rig.open()
        await until(lambda: "train/01.tar" in rig.store.reads)
        made = await take(session, Cursor(0, 30, ((30, 120),)))
        assert isinstance(made, Taken)
        assert made.ints() == [3000, 3001, 3002, 3003]
        await until(lambda: "train/33.tar" in rig.store.reads)
        assert "01" not in {entry.ref.key[-6:-4] for entry in rig.cache._disk.index}


async def test_a_rank_an_epoch_ahead_does_not_speak_for_the_others(tmp_path: Path) -> None:
    """What a slower rank still needs in this epoch stays due before what a faster one needs in the next."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        fast, slow = [await rig.open(topology=rank(n, 2), shuffle=True) for n in range(2)]
        await batches(fast)
        assert isinstance(await take(fast, Cursor(1, 0)), Taken)
        order = list(slow._parts.reader.orders(Cursor(0))[0])
        due = _next_uses(rig)
        following = list(fast._parts.reader.orders(Cursor(1))[0])
        for shard in range(6):
            expected = min(order.index(shard), 4 + following.index(shard))  # the fast one stands in the last window
            assert due[f"{shard:02d}"] == expected, shard
        await batches(slow)
        assert isinstance(await take(slow, Cursor(1, 0)), Taken)
        assert _next_uses(rig) == {f"{shard:02d}": 4.0 + following.index(shard) for shard in range(6)}


async def test_two_datasets_are_compared_by_how_far_off_their_uses_are(tmp_path: Path) -> None:
    """A job that begins when another has run for epochs has its first shards due first, and no sooner than that."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        old = await rig.open()
        for epoch in range(3):
            await batches(old, Cursor(epoch))
        for number in range(3):
            rig.store.put(f"other/{number:02d}.tar", rig.store._objects[f"train/{number:02d}.tar"])
        await rig.open(urls=("s3://memory/other/",))
        now = _next_uses(rig)["05"]  # it stands in its last window
        assert _next_uses(rig, "other") == {f"{n:02d}": now + n for n in range(3)}


async def test_the_next_epoch_is_read_ahead(tmp_path: Path) -> None:
    """Where an epoch drains, the first shards of the next one are fetched already, in its order."""
    async with feeding(tmp_path, cache_bytes=5 * SHARD_BYTES) as rig:
        rig.store.numbers(*[4] * 40)
        session = await rig.open(shuffle=True, window_shards=1)
        await batches(session)
        coming = session._parts.reader.orders(Cursor(1))[0][:2]
        wanted = {session._parts.view.refs[shard].url for shard in coming}
        await until(lambda: wanted <= {entry.url for entry in rig.cache.entries()})


async def test_a_large_dataset_is_told_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If very many shards have other next uses, the cache looks at its entries: their times are the same as else."""
    monkeypatch.setattr(prefetch_driver, "_MANY", 1)
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        one = await rig.open()
        await batches(one)
        assert _next_uses(rig) == {**{f"{n:02d}": float(n + 6) for n in range(5)}, "05": 5.0}
        await rig.open()
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}
        await take(one, Cursor(1, 4, ((4, 16),)))
        await rig.close(one)
        assert _next_uses(rig) == {f"{n:02d}": float(n) for n in range(6)}
