"""Cases 1 to 4, 8, 21, 22 and 53: what is sent again, how often, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.bench.server import faults as fault
from feedd.errors import FeeddError, NotFound, StoreUnavailable, Throttled
from feedd.metrics import SOURCE_RETRIES, SOURCE_RETRY_WAIT
from tests.fault.s3_rig import DATA, PART_BYTES, asked, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.bench.server.server import S3Server
    from tests.fault.s3_rig import Rig
    from tests.unit.serve.certs import Authority

PART_COUNT = 6


def when(rig: Rig, reached_s: float, act: Callable[[], object]) -> None:
    """Do something once when the rig's clock, that moves by sleeping only, gets there."""
    sleep_s: Callable[[float], Awaitable[None]] = rig.clock.sleep_s
    todo = [act]

    async def watched(duration_s: float) -> None:
        await sleep_s(duration_s)
        if todo and rig.clock.now_s >= reached_s:
            todo.pop()()

    rig.clock.sleep_s = watched  # type: ignore[method-assign]  # time is the test's to make


async def test_case_01_slow_down_twice(server: S3Server, rig: Rig) -> None:
    """After two 503 SlowDown the object is exact, asked for twice more, and fewer parts are in flight than before."""
    server.script("bucket", "key", fault.slow_down(), fault.slow_down())
    assert await rig.fetch() == DATA
    assert asked(server) == PART_COUNT + 2
    assert rig.recorder.total(SOURCE_RETRIES, reason="throttled") == 2
    assert rig.sources.tempo("s3://bucket").pace.limit < rig.options.parts_in_flight


async def test_case_01_retry_after_is_honoured(server: S3Server, rig: Rig) -> None:
    """A server that says when to come back is not asked earlier."""
    server.script("bucket", "key", fault.slow_down(7))
    assert await rig.fetch() == DATA
    assert max(rig.clock.sleeps_s) >= 7


async def test_case_02_a_minute_of_slow_down(server: S3Server, rig: Rig) -> None:
    """A minute of nothing but 503 is a wait that is counted, not a storm and not an error."""
    server.script("bucket", "key", always=fault.slow_down())
    when(rig, 60.0, server.calm)
    assert await rig.fetch() == DATA
    refused_count = asked(server) - PART_COUNT
    assert rig.clock.now_s >= 60
    # the initial balance, then probes: one every four seconds; without a quota each part would go on by itself
    assert refused_count <= 16 + 60 / 4 + 8
    assert rig.recorder.total(SOURCE_RETRY_WAIT) > 30


async def test_case_02_not_beyond_the_deadline(server: S3Server, authority: Authority, way: str) -> None:
    """A store that never recovers is an error when the deadline is over."""
    async with opened(server.url, authority, way, retry_deadline_s=120.0) as rig:
        server.script("bucket", "key", always=fault.slow_down())
        with pytest.raises(Throttled):
            await rig.fetch()
        assert 30 < rig.clock.now_s <= 125


async def test_case_02_retries_are_a_tenth(server: S3Server, authority: Authority, way: str) -> None:
    """Where every other answer is 503, retries are paid for by what goes well: the rest waits, and nothing is lost."""
    async with opened(server.url, authority, way, attempts_max=4) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        quota = rig.sources.tempo("s3://bucket").quota
        for _ in range(4):
            server.script("bucket", "key", *[fault.slow_down(), None] * PART_COUNT)
            assert await rig.fetch_ref(ref) == DATA
            server.calm()
        assert quota.balance < 16
        assert rig.recorder.total(SOURCE_RETRIES) <= 4 * PART_COUNT


async def test_case_03_internal_error(server: S3Server, rig: Rig) -> None:
    """A 500 is asked again, and the object is exact."""
    server.script("bucket", "key", fault.internal_error(), None, fault.internal_error())
    assert await rig.fetch() == DATA
    assert asked(server) == PART_COUNT + 2


async def test_case_03_internal_error_for_ever(server: S3Server, rig: Rig) -> None:
    """A part that fails whenever it is asked for is an error after as many attempts as configured."""
    server.script("bucket", "key", always=fault.internal_error())
    with pytest.raises(StoreUnavailable) as caught:
        await rig.fetch()
    assert caught.value.object == "s3://bucket/key"
    assert asked(server) <= rig.options.attempts_max * rig.options.parts_in_flight


async def test_case_04_error_document_with_200(server: S3Server, rig: Rig) -> None:
    """A 200 that carries an error document instead of the range is asked again, and none of it is kept."""
    server.script("bucket", "key", fault.Fault(status=200, code="InternalError"))
    assert await rig.fetch() == DATA
    assert asked(server) == PART_COUNT + 1


async def test_case_08_only_the_rest_is_asked_again(server: S3Server, rig: Rig) -> None:
    """A body that breaks off is taken up at the next byte: all answers together are as long as the object."""
    server.script("bucket", "key", fault.cut_body(40_000))
    assert await rig.fetch() == DATA
    ranges = [request.headers["range"].removeprefix("bytes=") for request in server.requests if request.op == "GET"]
    spans = [tuple(map(int, text.split("-"))) for text in ranges]
    asked_bytes = sum(last + 1 - first for first, last in spans)
    resumed = [first for first, _ in spans if first % PART_BYTES]
    assert len(resumed) == 1
    assert asked_bytes == len(DATA) + PART_BYTES - resumed[0] % PART_BYTES


async def test_case_08_progress_is_no_failure(server: S3Server, rig: Rig) -> None:
    """Attempts that bring bytes do not count: a part may break off oftener than it may fail."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.script("bucket", "key", *[fault.cut_body(5_000)] * (PART_COUNT * rig.options.attempts_max))
    assert await rig.fetch_ref(ref) == DATA


async def test_case_21_deleted(server: S3Server, rig: Rig) -> None:
    """An object deleted since it was listed is a typed error that names it, asked for once by each part at most."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.delete("bucket", "key")
    with pytest.raises(NotFound) as caught:
        await rig.fetch_ref(ref)
    assert caught.value.object == "s3://bucket/key"
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_case_22_hole_in_the_store(server: S3Server, rig: Rig) -> None:
    """One range that is gone is a typed error at once; the other parts' requests are not left running."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.script("bucket", "key", None, None, fault.missing())
    with pytest.raises(NotFound):
        await rig.fetch_ref(ref)
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_case_53_clock_jumps(server: S3Server, rig: Rig) -> None:
    """The wall clock may jump by years: no wait and no deadline depends on it."""
    jumps = iter([0.0, 4e9, -4e9] * 1000)
    rig.clock.wall_s = lambda: next(jumps)  # type: ignore[method-assign]  # time is the test's to make
    server.script("bucket", "key", fault.slow_down(), fault.reset_in_body(100), fault.internal_error())
    assert await rig.fetch() == DATA
    assert rig.clock.now_s < 60


async def test_case_53_errors_say_no_time(server: S3Server, rig: Rig) -> None:
    """What is told of a failure is the failure, not a clock's idea of when."""
    server.script("bucket", "key", always=fault.denied())
    with pytest.raises(FeeddError) as caught:
        await rig.fetch()
    assert caught.value.kind == "permission-denied"
