"""Indexes are read before batches ask for them, and nothing waits for those that nobody asks for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from feedd.catalog.index_prefetcher import IndexPrefetcher
from feedd.errors import BadShard
from feedd.flow.singleflight import Flight, SingleFlight
from feedd.values import Cursor
from tests.fakes.feeding import batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.catalog.index_store import Indexes
    from feedd.dataset.listing import DatasetView
    from feedd.sessions.session import Session
    from feedd.shard_index import ShardIndex
    from feedd.tables.cache import ConvertingCache
    from tests.fakes.feeding import Feeding


def _known(rig: Feeding, session: Session) -> list[int]:
    view = session._parts.view
    return [shard for shard in range(len(view.refs)) if rig.pipeline.catalog.readings.cached(view, shard)]


class _Readings:
    """Indexes that are read for as long as ``gate`` is closed; every shard is here."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.runs: SingleFlight[int, ShardIndex] = SingleFlight(group)
        self.gate = asyncio.Event()
        self.read: list[int] = []

    def index_prefetcher(self) -> IndexPrefetcher:
        """Return what reads them ahead."""
        view = SimpleNamespace(refs=range(99))
        cache = SimpleNamespace(holds=lambda _: True)
        return IndexPrefetcher(cast("Indexes", self), cast("DatasetView", view), cast("ConvertingCache", cache))

    def cached(self, _: DatasetView, shard: int) -> object:
        """Return what was read."""
        return shard if shard in self.read else None

    def begin(self, _: DatasetView, shard: int) -> Flight[int, ShardIndex]:
        """Read one."""

        async def work() -> ShardIndex:
            await self.gate.wait()
            self.read.append(shard)
            return cast("ShardIndex", object())

        return self.runs.join(shard, work)

    def leave(self, run: Flight[int, ShardIndex]) -> bool:
        """Want it no more."""
        return self.runs.leave(run)


async def test_few_are_read_at_once_and_none_before_the_first_batches() -> None:
    """Two workers, at most, do what nobody asked for yet; when one is done the next begins."""
    async with asyncio.TaskGroup() as group:
        readings = _Readings(group)
        index_prefetcher = readings.index_prefetcher()
        index_prefetcher.enter([5, 3, 5, 8, 1])
        for _ in range(8):
            index_prefetcher.look()
        assert not len(readings.runs)
        index_prefetcher.look()
        index_prefetcher.look()
        assert len(readings.runs) == 2
        readings.gate.set()
        await until(lambda: len(readings.read) == 4)
        assert readings.read == [5, 3, 8, 1]
        index_prefetcher.enter([7])  # another stream: its first batches come first, too
        index_prefetcher.look()
        await asyncio.sleep(0)
        assert not len(readings.runs)


async def test_what_two_windows_need_is_given_up_once_and_for_all() -> None:
    """A shard that is asked for again while its index is being read counts once: nobody holds it after ``close``."""
    async with asyncio.TaskGroup() as group:
        readings = _Readings(group)
        index_prefetcher = readings.index_prefetcher()
        index_prefetcher.enter([1, 2])
        for _ in range(9):
            index_prefetcher.look()
        index_prefetcher.expect([2, 1])
        index_prefetcher.look()
        index_prefetcher.close()
        await asyncio.wait_for(index_prefetcher.ended(), 5)
        assert not len(readings.runs)


async def test_an_open_asks_for_no_more_than_it_must_know(tmp_path: Path) -> None:
    """Whoever awaits a shard is served first, so what a batch will need is for the batch to await."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        session = await rig.open(shuffle=True)
        assert not len(rig.pipeline.catalog.readings._runs)
        assert len(_known(rig, session)) <= 1
        assert len(await batches(session)) > 0


async def test_the_rest_of_a_window_is_indexed_behind_its_first_batches(tmp_path: Path) -> None:
    """Where counts are known a batch asks for its own shards only, and the others of its window come meanwhile."""
    async with feeding(tmp_path) as rig:
        for shard in range(16):
            ref = rig.store.shard(shard, [{"cls": b"1"}] * 12)
            rig.pipeline.catalog._learned.note(ref, 12)
        session = await rig.open(batch_size=1, shuffle=True, window_shards=16)
        assert len(_known(rig, session)) <= 1  # the one it looks at
        refs = session._parts.view.refs
        await until(lambda: all(map(rig.pipeline.cache.holds, refs)))
        for step in range(8):
            await take(session, Cursor(1, step))
        assert len(_known(rig, session)) <= 9
        await take(session, Cursor(1, 8))
        await until(lambda: len(_known(rig, session)) == 16)


async def test_the_next_window_is_indexed_when_it_is_here_but_not_before_the_first_batches(tmp_path: Path) -> None:
    """What is asked for next is known when it is asked for; it is not in the way of what is asked for first."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 3)
        session = await rig.open(batch_size=1)
        here = session._parts.view.refs[1]
        await until(lambda: rig.pipeline.cache.holds(here))
        for step in range(8):
            await take(session, Cursor(0, step))
        assert _known(rig, session) == [0]
        await take(session, Cursor(0, 8))
        await until(lambda: _known(rig, session) == [0, 1])


async def test_counts_of_what_was_read_ahead_are_learned_for_later_daemons(tmp_path: Path) -> None:
    """Whoever read an index, its count is kept as soon as a batch is made with it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 3)
        session = await rig.open(batch_size=1)
        refs = session._parts.view.refs
        await batches(session)
        assert rig.pipeline.catalog._learned.known(refs) == {0: 12, 1: 12, 2: 12}


async def test_what_is_not_here_is_not_fetched_to_be_indexed(tmp_path: Path) -> None:
    """A shard that is still on its way, or has no room yet, is not asked for before a batch needs it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 2)
        gate = rig.store.gates["train/01.tar"] = asyncio.Event()
        session = await rig.open(batch_size=1)
        for step in range(12):
            await take(session, Cursor(0, step))
        assert _known(rig, session) == [0]
        assert not len(rig.pipeline.catalog.readings._runs)
        gate.set()
        assert len(await batches(session, Cursor(1))) == 24


async def test_a_session_that_closes_gives_up_what_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read for a session that is gone, and nothing of it is pinned."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 2)
        session = await rig.open(batch_size=1)
        here = session._parts.view.refs[1]
        await until(lambda: rig.pipeline.cache.holds(here))
        for step in range(8):
            await take(session, Cursor(0, step))

        async def index(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(rig.pipeline.stages.pool, "index", index)
        await take(session, Cursor(0, 8))
        assert len(rig.pipeline.catalog.readings._runs) == 1
        await rig.close(session)
        assert not len(rig.pipeline.catalog.readings._runs)


async def test_a_shard_that_cannot_be_indexed_ahead_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    """The open does not fail, the batches before it come, and the one that needs it says what is wrong."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 2)
        rig.store.put("train/01.tar", b"x" * 2048)
        session = await rig.open(batch_size=1)
        for step in range(12):
            await take(session, Cursor(0, step))
        await until(lambda: not len(rig.pipeline.catalog.readings._runs))
        with pytest.raises(BadShard):
            await take(session, Cursor(0, 12))
