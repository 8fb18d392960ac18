"""A successor's cache reads the predecessor's entries in place, and changes nothing before it owns the directory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache.borrowed_cache import BorrowedCache
from feedd.cache.cache import Cache
from feedd.errors import Draining
from tests.fakes.caches import CacheRig, rig_on
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CacheRig]:
    """Opens the predecessor's cache."""
    with rig_on("disk", tmp_path) as made:
        yield made


@asynccontextmanager
async def _borrowed(rig: CacheRig) -> AsyncIterator[BorrowedCache]:
    options = rig.options()
    async with BorrowedCache(options, Cache(options, rig.fetcher, rig.recorder, rig.clock)) as cache:
        yield cache


def _damage(entry: Path, end: bytes) -> None:
    """Replace the last byte."""
    entry.write_bytes(entry.read_bytes()[:-1] + end)


async def test_entries_are_read_while_the_predecessor_owns_them(rig: CacheRig) -> None:
    """Two daemons read one entry; it is fetched once, and the borrower's pins outlive its removal."""
    (ref,) = rig.shards(1)
    async with rig.open() as owner:
        (await owner.acquire([ref])).release()
        async with _borrowed(rig) as cache:
            with await cache.acquire([ref, ref]) as pins:
                rig.check(pins, [ref, ref])
                await owner.discard(ref)
                rig.check(pins, [ref, ref])
            assert cache.holds(ref)
    assert rig.fetcher.calls[ref.key] == 1


async def test_a_file_in_use_is_not_overwritten_by_the_next_fill(rig: CacheRig) -> None:
    """The owner evicts the entry for another of its size; who borrowed it goes on reading the bytes it began with."""
    old, new = rig.shards(2)
    async with rig.open(capacity=1) as owner:
        (await owner.acquire([old])).release()
        async with _borrowed(rig) as cache:
            with await cache.acquire([old]) as pins, await owner.acquire([new]) as others:
                rig.check(others, [new])
                rig.check(pins, [old])


async def test_what_is_not_there_waits_for_the_end_of_the_predecessor(rig: CacheRig) -> None:
    """No fetch begins before; then the shard is fetched into the directory, like those that were wished for."""
    here, missing, wished = rig.shards(3)
    async with _borrowed(rig) as cache:
        async with rig.open() as owner:
            (await owner.acquire([here])).release()
            waiting = asyncio.ensure_future(cache.acquire([here, missing]))
            cache.prefetch([wished], "session")
            assert not (await asyncio.wait([waiting], timeout=0.05))[0]
            assert rig.fetcher.calls.keys() == {here.key}
        await cache.own()
        with await waiting as pins:
            rig.check(pins, [here, missing])
        await until(lambda: rig.fetcher.calls[wished.key] == 1)
        with await cache.acquire([wished]):
            assert rig.fetcher.calls == {here.key: 1, missing.key: 1, wished.key: 1}
        assert cache.stats.entry_count == 3
    assert not rig.temp_files()


@pytest.mark.parametrize("broken", ["torn", "longer"])
async def test_a_broken_entry_is_missing(rig: CacheRig, broken: str) -> None:
    """It is not served: the acquirer waits, and the owner repairs it."""
    (ref,) = rig.shards(1)
    async with _borrowed(rig) as cache:
        async with rig.open() as owner:
            with await owner.acquire([ref]) as pins:
                path = pins.files[0].path
        _damage(Path(path), b"\xff" if broken == "torn" else b"\xff\xff")
        waiting = asyncio.ensure_future(cache.acquire([ref]))
        assert not (await asyncio.wait([waiting], timeout=0.05))[0]
        await cache.own()
        with await waiting as pins:
            rig.check(pins, [ref])


async def test_a_waiter_is_told_that_the_cache_closes(rig: CacheRig) -> None:
    """A successor that ends while it stands by leaves no acquirer waiting."""
    (missing,) = rig.shards(1)
    async with _borrowed(rig) as cache:
        waiting = asyncio.ensure_future(cache.acquire([missing]))
        await asyncio.sleep(0)
        await cache.close()
        with pytest.raises(Draining):
            await waiting
