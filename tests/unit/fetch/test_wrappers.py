"""What the wrappers add to a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.errors import NotFound, StoreUnavailable, Throttled
from feedd.fetch.once import Once
from feedd.fetch.requests import RequestStore
from feedd.fetch.retry import RetryLimits, RetryPolicy, RetryStore
from feedd.metrics import (
    SOURCE_BYTES,
    SOURCE_FIRST_BYTE,
    SOURCE_REQUESTS,
    SOURCE_RETRY_WAIT,
    SOURCE_ROUND_TRIP,
    SOURCE_SECONDS,
)
from feedd.values import ByteRange
from tests.fakes.memory_store import MemoryStore
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
from tests.unit.fetch.test_ranged import GatedStore

if TYPE_CHECKING:
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef, ReadProgress


async def test_permit_lives_as_long_as_the_body() -> None:
    """Never more than the limit at a time; a cancelled reader gives its permit back."""
    store = GatedStore()
    limited = RequestStore(store, 2, TallyRecorder(), TimelessClock())
    ref = store.put("x", b"0123456789")

    async def one() -> None:
        await limited.read_into(ref, ByteRange(0, 1), into(bytearray(1)))

    readers = [asyncio.ensure_future(one()) for _ in range(4)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(store.begun) == 2
    readers[0].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(store.begun) == 3
    store.gate.set()
    await asyncio.gather(*readers[1:])
    assert len(store.begun) == 4
    with pytest.raises(ValueError, match="at least one"):
        RequestStore(store, 0, TallyRecorder(), TimelessClock())


async def test_listing_holds_no_permit_between_pages() -> None:
    """Whoever works on a page does not keep others from asking."""
    store = MemoryStore(page_count=1)
    for key in "abc":
        store.put(key, b"x")
    limited = RequestStore(store, 1, TallyRecorder(), TimelessClock())
    found = [(page[0].key, (await limited.head("a")).key) async for page in limited.list("")]
    assert found == [("a", "a"), ("b", "a"), ("c", "a")]


class _Refusing(MemoryStore):
    """Tells every reader to slow down, until it is told to stop that."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_count = 0
        self.refuses = True

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        self.sent_count += 1
        if self.refuses:
            raise Throttled("expected 206, got 503", object=ref.url)
        await super().read_into(ref, span, sink, progress)


class _Slow(MemoryStore):
    """Gives one byte of a range, and then runs out of time."""

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        assert progress is not None
        await super().read_into(ref, ByteRange(span.start, span.start + 1), sink.part(0, 1), progress)
        progress.filled_bytes = 1
        raise StoreUnavailable("no answer in time", object=ref.url) from TimeoutError()


async def test_slow_is_told_apart_from_silent() -> None:
    """An error for want of time says how much of the range came, over all tries."""
    store = _Slow()
    ref = store.put("x", bytes(1000))
    retrying = RetryStore(store, RetryLimits(RetryPolicy(attempts_max=3)), TimelessClock(), TallyRecorder())
    with pytest.raises(StoreUnavailable, match="no answer in time: 3 of 1000 bytes came"):
        await retrying.read_into(ref, ByteRange(0, 1000), into(bytearray(1000)))


async def test_no_storm_whatever_the_jitter() -> None:
    """With no jitter at all the quota alone keeps a minute of refusals to its balance and a few probes."""
    store, clock, recorder = _Refusing(), TimelessClock(), TallyRecorder()
    ref = store.put("x", b"0123456789")
    limits = RetryLimits(RetryPolicy(), lambda _: 60.0)
    retrying = RetryStore(store, limits, clock, recorder, chance=lambda: 0.0)
    with pytest.raises(Throttled):
        await retrying.read_into(ref, ByteRange(0, 5), into(bytearray(5)))
    assert store.sent_count <= 1 + 16 + 60 / 4 + 5
    assert clock.now_s > 50
    assert recorder.total(SOURCE_RETRY_WAIT, reason="quota") > 50
    store.refuses = False
    target = bytearray(5)
    await retrying.read_into(ref, ByteRange(0, 5), into(target))
    assert target == b"01234"


async def test_meter_tells_outcomes_apart() -> None:
    """Requests are counted by op and outcome, bytes only when they arrived."""
    store, recorder = GatedStore(), TallyRecorder()
    metered = RequestStore(store, 2, recorder, TimelessClock())
    ref = store.put("x", b"0123456789")
    hanging = asyncio.ensure_future(metered.read_into(ref, ByteRange(0, 5), into(bytearray(5))))
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    store.gate.set()
    await metered.read_into(ref, ByteRange(0, 5), into(bytearray(5)))
    with pytest.raises(NotFound):
        await metered.head("missing")
    assert recorder.total(SOURCE_REQUESTS, op="read", outcome="cancelled") == 1
    assert recorder.total(SOURCE_REQUESTS, op="read", outcome="ok") == 1
    assert recorder.total(SOURCE_REQUESTS, op="head", outcome="not-found") == 1
    assert recorder.total(SOURCE_SECONDS) == 3
    assert recorder.total(SOURCE_BYTES) == 5


async def test_meter_records_the_first_byte() -> None:
    """Where a store notes them, the time from the request to the first byte and the round trip are observed."""

    class Noting(GatedStore):
        async def read_into(
            self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
        ) -> None:
            assert progress is not None
            progress.first_byte_s, progress.round_trip_s = 2.5, 0.1
            await super().read_into(ref, span, sink, progress)

    recorder = TallyRecorder()
    store = Noting()
    store.gate.set()
    await RequestStore(store, 2, recorder, TimelessClock()).read_into(
        store.put("x", b"0123456789"), ByteRange(0, 5), into(bytearray(5))
    )
    assert recorder.total(SOURCE_FIRST_BYTE) == recorder.total(SOURCE_ROUND_TRIP) == 1


async def test_once_opens_once() -> None:
    """Many callers, one opening; a leader that fails or is cancelled hands over to the next."""
    opened, gate = 0, asyncio.Event()

    async def open_it() -> str:
        nonlocal opened
        opened += 1
        await gate.wait()
        if opened == 2:
            raise OSError("second fails")
        return "value"

    once = Once(open_it)
    callers = [asyncio.ensure_future(once.get()) for _ in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)
    callers[0].cancel()
    gate.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, OSError, str, str]
    assert (opened, once.value) == (3, "value")
