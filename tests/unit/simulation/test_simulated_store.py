"""The simulated store: time to the first byte, refused requests, pages of a listing."""

from __future__ import annotations

import asyncio

import pytest

from feedd.errors import Throttled
from feedd.flow.range_sinks import MemorySink
from feedd.simulation.link import SharedLink
from feedd.simulation.simulated_store import RequestLimit, SimulatedStore
from feedd.simulation.virtual_loop import run_in_virtual_time
from feedd.values import ByteRange, ObjectRef, ReadProgress

_REF = ObjectRef("s3://b", "k", 100, "e")
_SPAN = ByteRange(0, 100)


def _store(requests_s: float = 0.0, pages: int = 1) -> SimulatedStore:
    return SimulatedStore("s3://b", 0.5, SharedLink(1000.0, 100.0), RequestLimit(requests_s), pages)


def _sink() -> MemorySink:
    return MemorySink(memoryview(bytearray(100)))


def test_a_read_takes_latency_and_body() -> None:
    """Half a second for an answer, one more for 100 bytes at 100 bytes a second. A few bytes are noticed together."""
    store, progress = _store(), ReadProgress()

    async def run() -> float:
        await store.read_into(_REF, _SPAN, _sink(), progress)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == pytest.approx(1.5)
    assert progress.first_byte_s == pytest.approx(1.5)
    assert progress.filled_bytes == 100
    assert (dict(store.requests), store.sent_bytes, store.refused_count) == ({"get": 1}, 100, 0)


def test_the_first_bytes_are_noticed_as_a_transfer_thread_does() -> None:
    """Of 1 MiB at 1 MiB a second, the first 256 KiB wake the thread."""
    store, progress = SimulatedStore("s3://b", 0.5, SharedLink(1 << 30, 1 << 20), RequestLimit(0.0)), ReadProgress()
    run_in_virtual_time(store.read_into(_REF, ByteRange(0, 1 << 20), _sink(), progress))
    assert progress.first_byte_s == pytest.approx(0.5 + 0.25)
    assert store.sent_bytes == 1 << 20


def test_requests_above_the_limit_are_refused() -> None:
    """Two requests a second: of three at one time the third is refused. A pause of 9 s lets no more pass at once."""
    store = _store(requests_s=2.0)

    async def run() -> list[bool]:
        found = await asyncio.gather(*(store.checksum(_REF) for _ in range(3)), return_exceptions=True)
        await asyncio.sleep(9.0)
        found += await asyncio.gather(*(store.checksum(_REF) for _ in range(3)), return_exceptions=True)
        return [isinstance(one, Throttled) for one in found]

    assert run_in_virtual_time(run()) == [False, False, True] * 2
    assert (store.requests["head"], store.refused_count) == (6, 2)


def test_a_listing_takes_a_request_for_each_page() -> None:
    """Three pages, one after another; a listing that is resumed asks for the others only."""
    store = _store(pages=3)

    async def run() -> tuple[int, float, int]:
        first = [page async for page in store.list("")]
        listed_s = asyncio.get_running_loop().time()
        rest = [page async for page in store.list("", first[0][-1].key)]
        return len(first), listed_s, len(rest)

    first_count, listed_s, rest_count = run_in_virtual_time(run())
    assert (first_count, rest_count) == (3, 2)
    assert listed_s == pytest.approx(1.5)
    assert store.requests["list"] == 5
