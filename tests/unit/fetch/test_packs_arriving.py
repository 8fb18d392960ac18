"""Samples of packs on their way in, over a real HTTP server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.errors import FeeddError
from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.flow.range_sinks import FileSink
from tests.budget import PATIENT_S
from tests.fakes.s3 import faults as fault
from tests.fakes.sinks import memory_sink_file
from tests.fakes.stores import serving, sources_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.catalog.sources import Sources
    from feedd.catalog.url_listing import Resolved
    from feedd.fetch.packs import PartialWait
    from feedd.values import ShardFile
    from tests.fakes.s3.server import S3Server

pytestmark = pytest.mark.slow  # over a real server

BODIES = {f"t/{n:03d}.jpg": bytes([n]) * (n * 37 % 500) for n in range(40)}  # some are empty
SLOW = "t/031.jpg"
LATE = fault.late(0.4)


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with small objects."""
    with serving(BODIES) as running:
        yield running


@pytest.fixture
async def sources(server: S3Server) -> AsyncIterator[Sources]:
    """Open sources over the server, that give up at once."""
    async with sources_over(server, attempts_max=1, retry_deadline_s=5, hedge_share=0) as opened:
        yield opened


async def _fetch(sources: Sources, found: Resolved) -> None:
    (ref,) = found.refs
    with memory_sink_file(ref.size_bytes) as file:
        await sources.fetcher.fetch(ref, FileSink(file, 0, ref.size_bytes))


def _wait(sources: Sources, found: Resolved, *numbers: int) -> PartialWait:
    return sources.packs.wait_for({found.refs[0]: np.array(numbers)}, sources.packs.ticket())


def _read(awaited: PartialWait, found: Resolved, number: int) -> bytes:
    """Return an object's bytes, as a worker would read them."""
    (file,) = awaited.files().values()
    (packs,) = found.packs
    edges = packs.table(0).starts().tolist()
    assert file.inflight
    return _bytes(file)[edges[number] : edges[number + 1]]


def _bytes(file: ShardFile) -> bytes:
    return Path(file.path).read_bytes()[file.data_at :]


async def test_what_has_come_can_be_read(server: S3Server, sources: Sources) -> None:
    """Before the rest has; whether it is waited for before the fetch begins, or after it came."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", SLOW, LATE)
    with _wait(sources, found, 0, 5, 30) as before:
        fetch = asyncio.create_task(_fetch(sources, found))
        await asyncio.wait_for(before.ready, PATIENT_S)
        assert _read(before, found, 30) == BODIES["t/030.jpg"]
        with _wait(sources, found, 5) as after:
            assert after.ready.done()
            assert _read(after, found, 5) == BODIES["t/005.jpg"]
        with _wait(sources, found, 31) as late:
            assert not late.ready.done()
            assert not late.files()
            await asyncio.wait_for(late.ready, PATIENT_S)
        assert not fetch.done()
        await fetch


async def test_a_file_outlives_its_fetch(sources: Sources) -> None:
    """What was handed out can be read until the end, and nothing new is handed out once the cache has the pack."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    with _wait(sources, found, 7) as awaited:
        fetch = asyncio.create_task(_fetch(sources, found))
        await awaited.ready
        files = list(awaited.files().values())
        await fetch
        for file in files:
            edges = found.packs[0].table(0).starts().tolist()
            data = _bytes(file)
            assert data[edges[7] : edges[8]] == BODIES["t/007.jpg"]
        assert not awaited.files()
    with _wait(sources, found, 7, 8) as finished:
        assert finished.ready.done(), "it came a moment ago"
        assert not finished.files()


async def test_what_is_lost_is_not_handed_out(server: S3Server, sources: Sources) -> None:
    """Zeros lie in its place: who wants it is woken, and must wait for the pack, which tells."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", "t/005.jpg", always=fault.missing())
    server.script("bucket", SLOW, fault.missing(), LATE)  # asked for again, as the other one is, and there, but late
    with _wait(sources, found, 5, 6) as lost, _wait(sources, found, 6) as fine:
        fetch = asyncio.create_task(_fetch(sources, found))
        await asyncio.wait_for(asyncio.gather(lost.ready, fine.ready), PATIENT_S)
        assert not lost.files()
        assert fine.files()
        await fetch


async def test_a_fetch_that_failed_counts_for_nothing(server: S3Server, sources: Sources) -> None:
    """What came of it went with it: the next one brings everything anew."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", SLOW, fault.internal_error())
    with _wait(sources, found, 5, 31) as awaited:
        with pytest.raises(FeeddError):
            await _fetch(sources, found)
        assert not awaited.ready.done()
        assert not awaited.files()
        await asyncio.gather(asyncio.create_task(_fetch(sources, found)), awaited.ready)


async def test_samples_of_several_objects(server: S3Server, sources: Sources) -> None:
    """A sample has come when all its objects have."""
    for number in range(10):
        server.put("bucket", f"pairs/{number}.jpg", b"picture")
        server.put("bucket", f"pairs/{number}.txt", b"words")
    found = await sources.resolve_all(["s3://bucket/pairs/"])
    server.script("bucket", "pairs/3.txt", LATE)
    with _wait(sources, found, 2) as two, _wait(sources, found, 3) as three:
        fetch = asyncio.create_task(_fetch(sources, found))
        await asyncio.wait_for(two.ready, PATIENT_S)
        assert not three.ready.done()
        await asyncio.wait_for(three.ready, PATIENT_S)
        await fetch


async def test_nothing_is_kept(sources: Sources) -> None:
    """Of waits that ended, and of fetches, nothing is left in the books, and no file open."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    with _wait(sources, found, 1, 2) as awaited:
        fetch = asyncio.create_task(_fetch(sources, found))
        await awaited.ready
        (file,) = awaited.files().values()
        await fetch
        assert Path(file.path).exists()  # noqa: ASYNC240 - of /proc
    assert not Path(file.path).exists()  # noqa: ASYNC240 - of /proc
    book = sources.packs.inflight
    assert not book._running
    assert not book._waiting


async def test_a_part_that_came_before_the_refusal_counts_once() -> None:
    """An object of several parts, one of which is refused once, is asked for whole again, and told when it has come."""
    bodies = {"t/0.jpg": os.urandom(3000), "t/1.jpg": b"late" * 100}
    with serving(bodies) as server:
        async with sources_over(server, attempts_max=1, part_size_bytes=1000, hedge_share=0) as sources:
            found = await sources.resolve_all(["s3://bucket/t/"])
            server.script("bucket", "t/0.jpg", None, fault.denied())
            server.script("bucket", "t/1.jpg", fault.denied(), LATE)  # asked for again as well, behind the other one
            with _wait(sources, found, 0) as awaited:
                fetch = asyncio.create_task(_fetch(sources, found))
                await asyncio.wait_for(awaited.ready, PATIENT_S)
                assert not fetch.done()
                assert _read(awaited, found, 0) == bodies["t/0.jpg"]
                await fetch


async def test_what_is_waited_for_before_the_fetch_is_asked_for_first(server: S3Server) -> None:
    """Of few objects at a time, those come first, and first again if they were refused; each comes once."""
    for number in {*range(1, 40)} - {37}:
        server.script("bucket", f"t/{number:03d}.jpg", fault.denied())
    async with sources_over(server, attempts_max=1, parts_in_flight=1, hedge_share=0) as sources:
        found = await sources.resolve_all(["s3://bucket/t/"])
        server.requests.clear()
        with _wait(sources, found, 37, 39) as awaited:
            fetch = asyncio.create_task(_fetch(sources, found))
            await asyncio.wait_for(awaited.ready, PATIENT_S)
            await fetch
    asked = [request.key for request in server.requests if request.op == "GET"]
    bodies = sum(bool(body) for body in BODIES.values())
    assert {"t/037.jpg", "t/039.jpg"} <= set(asked[:PARTS_PER_PLACE])
    assert "t/039.jpg" in asked[bodies : bodies + PARTS_PER_PLACE]
    assert asked.count("t/037.jpg") == 1
