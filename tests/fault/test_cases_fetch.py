"""Cases 49 to 51: consumers that stop, budgets smaller than a part, and cancellation at every await."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from tests.budget import budget
from tests.fakes.backend import FakeScript
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server
from tests.fault.s3_rig import DATA, EVERY_WAY, PART_BYTES, Rig, asked, opened
from tests.unit.serve.raw_client import attach, release, serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.serve.certs import Authority

SHARDS = 4
TURNS = st.integers(0, 120) | st.integers(0, 3000)  # a first fetch over cold connections takes some 2,500


def put_shards(server: S3Server) -> list[str]:
    """Store several objects; return their URLs."""
    for number in range(SHARDS):
        server.put("bucket", f"shard-{number}", DATA[number:])
    return [f"s3://bucket/shard-{number}" for number in range(SHARDS)]


async def test_case_49_consumers_that_give_up(server: S3Server, rig: Rig) -> None:
    """Fetches given up in the middle hold no more bytes than the budget, then none; later ones are whole."""
    refs = await rig.sources.resolve(put_shards(server))
    for _ in range(3):  # a consumer that takes one shard, and stops for good while the others are on their way
        tasks = [asyncio.get_running_loop().create_task(rig.fetch_ref(ref)) for ref in refs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert rig.recorder.total(FETCH_BYTES) <= rig.options.bytes_in_flight
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        rig.assert_nothing_held()
    got = await asyncio.gather(*map(rig.fetch_ref, refs))
    assert got == [DATA[number:] for number in range(SHARDS)]
    assert rig.recorder.peaks[FETCH_BYTES.name] <= rig.options.bytes_in_flight
    assert rig.recorder.peaks[FETCH_PARTS.name] <= rig.options.parts_in_flight


async def test_case_49_a_stream_without_credits(short_dir: Path) -> None:
    """For a trainer that takes nothing any more as many batches are made as it has slots; then it goes on."""
    async with serving(short_dir, FakeScript(steps=12)) as rig, contextlib.AsyncExitStack() as stack:
        opened = await rig.open(prefetch_batches=3)
        stack.callback((await attach(opened.arena)).close)
        stream = await rig.stream(opened.session_id, credits=2)
        first, second = await stream.until(2)
        backend = rig.backend.sessions[0]
        await asyncio.sleep(0.2)
        assert len(backend.produced) <= 3
        await stream.send(credits=10, releases=[release(first), release(second)])
        for count in range(3, 13):
            await stream.until(count)
            await stream.send(releases=[release(stream.batches[count - 1])])
        await stream.finish()
        assert [batch.cursor.step for batch in stream.batches] == list(range(12))


@EVERY_WAY
async def test_case_50_budget_smaller_than_a_part_per_shard(server: S3Server, authority: Authority, way: str) -> None:
    """With less memory than one part of each open shard, even than one part, all come whole, each byte asked once."""
    urls = put_shards(server)
    for bytes_in_flight in (2 * PART_BYTES, PART_BYTES // 2):
        async with opened(server.url, authority, way, bytes_in_flight=bytes_in_flight) as rig:
            refs = await rig.sources.resolve(urls)
            before = asked(server)
            got = await asyncio.gather(*map(rig.fetch_ref, refs))
            assert got == [DATA[number:] for number in range(SHARDS)]
            assert asked(server) - before == SHARDS * 6
            assert rig.recorder.peaks[FETCH_BYTES.name] <= max(bytes_in_flight, PART_BYTES)


async def after_turns(turn_count: int, task: asyncio.Task[bytes]) -> None:
    """Cancel a task so many turns of the loop from now, or when it is done."""
    for _ in range(turn_count):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()


async def cancelled_and_again(url: str, authority: Authority, turn_counts: list[int]) -> None:
    """Fetch and give up after so many turns, again and again beside a fetch that goes on; then all is as ever."""
    async with opened(url, authority) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        loop = asyncio.get_running_loop()
        for turn_count in turn_counts:
            before = asyncio.all_tasks()
            doomed, other = loop.create_task(rig.fetch_ref(ref)), loop.create_task(rig.fetch_ref(ref))
            await after_turns(turn_count, doomed)
            with contextlib.suppress(asyncio.CancelledError):
                assert await doomed == DATA
            assert await other == DATA
            rig.assert_nothing_held()
            assert asyncio.all_tasks() <= before
        assert await rig.fetch_ref(ref) == DATA
        assert rig.recorder.peaks[FETCH_BYTES.name] <= rig.options.bytes_in_flight


@pytest.mark.slow
def test_case_51_cancelled_at_any_await(authority: Authority) -> None:
    """A fetch given up at any turn of the loop leaks no connection, task, place or byte, and harms no other."""

    @settings(max_examples=budget(15), deadline=None)
    @given(turn_counts=st.lists(TURNS, min_size=1, max_size=6), broken=st.booleans())
    def check(turn_counts: list[int], broken: bool) -> None:
        with S3Server() as server:
            server.put("bucket", "key", DATA, Kept("crc64nvme"))
            if broken:
                server.script("bucket", "key", None, fault.slow_down(), fault.reset_in_body(1000), fault.flipped_bit(9))
            asyncio.run(cancelled_and_again(server.url, authority, turn_counts))

    check()
