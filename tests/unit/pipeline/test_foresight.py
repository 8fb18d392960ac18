"""Indexes are read before batches ask for them, and nothing waits for those that nobody asks for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadShard
from feedd.values import Cursor
from tests.fakes.feeding import batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.pipeline.session import Session
    from tests.fakes.feeding import Feeding


def _known(rig: Feeding, session: Session) -> list[int]:
    listing = session._parts.filling.listing
    return [shard for shard in range(len(listing.refs)) if rig.pipeline.shelf.readings.held(listing, shard)]


async def test_the_first_window_is_indexed_before_anybody_takes_a_batch(tmp_path: Path) -> None:
    """An open begins with all shards of its first window, not only with the one it has to look at."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 6)
        session = await rig.open(shuffle=True)
        await until(lambda: len(_known(rig, session)) >= 2)
        window = session._parts.reader.walk(session._parts.filling.listing, Cursor()).needed(0)
        assert len(window) == 2
        assert set(window) <= set(_known(rig, session))


async def test_the_next_window_is_indexed_when_it_is_here_but_not_before_the_first_batches(tmp_path: Path) -> None:
    """What is asked for next is known when it is asked for; it is not in the way of what is asked for first."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 3)
        session = await rig.open(batch_size=1)
        here = session._parts.filling.listing.refs[1]
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
        refs = session._parts.filling.listing.refs
        await batches(session)
        assert rig.pipeline.shelf._learned.known(refs) == {0: 12, 1: 12, 2: 12}


async def test_what_is_not_here_is_not_fetched_to_be_indexed(tmp_path: Path) -> None:
    """A shard that is still on its way, or has no room yet, is not asked for before a batch needs it."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 2)
        gate = rig.store.gates["train/01.tar"] = asyncio.Event()
        session = await rig.open(batch_size=1)
        for step in range(12):
            await take(session, Cursor(0, step))
        assert _known(rig, session) == [0]
        assert not len(rig.pipeline.shelf.readings._runs)
        gate.set()
        assert len(await batches(session, Cursor(1))) == 24


async def test_a_session_that_closes_gives_up_what_it_began(tmp_path: Path) -> None:
    """Nobody waits for a shard that nobody wants any more."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[4] * 4)
        first = await rig.open(shuffle=True)
        listing = first._parts.filling.listing
        last = first._parts.reader.walk(listing, Cursor()).needed(0)[-1]
        await until(lambda: last in _known(rig, first))
        await rig.close(first)
        rig.pipeline.shelf.readings._kept.clear()
        await rig.pipeline.cache.discard(listing.refs[last])
        rig.store.gates[listing.refs[last].key] = asyncio.Event()
        second = await rig.open(shuffle=True)
        assert len(rig.pipeline.shelf.readings._runs) == 1
        await rig.close(second)
        assert not len(rig.pipeline.shelf.readings._runs)


async def test_a_shard_that_cannot_be_indexed_ahead_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    """The open does not fail, the batches before it come, and the one that needs it says what is wrong."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*[12] * 2)
        rig.store.put("train/01.tar", b"x" * 2048)
        session = await rig.open(batch_size=1)
        for step in range(12):
            await take(session, Cursor(0, step))
        await until(lambda: not len(rig.pipeline.shelf.readings._runs))
        with pytest.raises(BadShard):
            await take(session, Cursor(0, 12))
