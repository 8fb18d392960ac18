"""Cases 10 to 12: parts that are slow while others are not get a second request, within a share of extra bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.metrics import SOURCE_HEDGED_BYTES, SOURCE_HEDGES, SOURCE_REQUESTS, SOURCE_RETRIES
from tests.fakes.s3 import faults as fault
from tests.fault.s3_rig import DATA, EVERY_WAY, PART_BYTES, asked, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.values import ObjectRef
    from tests.fakes.s3.faults import Fault
    from tests.fakes.s3.server import S3Server
    from tests.fault.s3_rig import Rig
    from tests.unit.serve.certs import Authority

SHARE = 0.05
PARTS_AT_FIRST = 8
STALL_BYTES = 30_000


@pytest.fixture
async def hedging(server: S3Server, authority: Authority, way: str) -> AsyncIterator[Rig]:
    """Run sources that ask a second time."""
    async with opened(server.url, authority, way, hedge_share=SHARE) as rig:
        yield rig


async def seasoned(rig: Rig) -> ObjectRef:
    """Let the sources see what is usual; return what they saw."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    for _ in range(3):
        assert await rig.fetch_ref(ref) == DATA
    return ref


async def won_by_the_second(server: S3Server, rig: Rig, *bad: Fault | None) -> float:
    """Check that a fetch that meets these is exact without a retry; return the bytes that were asked for twice."""
    ref = await seasoned(rig)
    won = rig.recorder.total(SOURCE_HEDGES, outcome="won")
    before = asked(server) - rig.recorder.total(SOURCE_HEDGES)
    extra_bytes = rig.recorder.total(SOURCE_HEDGED_BYTES)
    server.script("bucket", "key", *bad)
    assert await rig.fetch_ref(ref) == DATA
    hedge_count = rig.recorder.total(SOURCE_HEDGES)
    assert rig.recorder.total(SOURCE_HEDGES, outcome="won") - won == sum(one is not None for one in bad)
    assert asked(server) == before + 6 + hedge_count, "one request per part, and one more for each that was slow"
    assert rig.recorder.total(SOURCE_RETRIES) == 0
    assert rig.recorder.total(SOURCE_REQUESTS, op="read", outcome="cancelled") == hedge_count, "the losers"
    assert await rig.fetch_ref(ref) == DATA, "and nothing is left behind"
    return rig.recorder.total(SOURCE_HEDGED_BYTES) - extra_bytes


@EVERY_WAY
async def test_case_10_stall_in_mid_body(server: S3Server, hedging: Rig) -> None:
    """A body that stalls is asked for again from where it stands, and the first request is cancelled."""
    extra_bytes = await won_by_the_second(server, hedging, None, fault.hang_in_body(STALL_BYTES))
    ranges = [request.headers["range"] for request in server.requests if request.op == "GET"]
    starts = {int(possible_columns.removeprefix("bytes=").split("-")[0]) % PART_BYTES for possible_columns in ranges}
    assert STALL_BYTES in starts, "what had come was not asked for again"
    assert extra_bytes >= 123 - 1


async def test_case_10_all_that_is_under_way_stalls(server: S3Server, hedging: Rig) -> None:
    """Where as many parts stall as may be in flight, second requests still get connections, and none is retried."""
    assert hedging.options.bytes_in_flight == 3 * PART_BYTES
    await won_by_the_second(server, hedging, fault.hang(), *[fault.hang_in_body(STALL_BYTES)] * 2)


async def test_case_11_drip(server: S3Server, hedging: Rig) -> None:
    """A body far below the usual rate counts as one that stalls, though it never pauses for long."""
    await won_by_the_second(server, hedging, fault.drip(10_000))


async def test_case_12_slow_first_byte(server: S3Server, hedging: Rig) -> None:
    """Some requests whose first byte is late get a second each, and the extra bytes stay within the share."""
    await won_by_the_second(server, hedging, fault.late(3.0), None, None, fault.late(3.0))
    read_bytes = asked(server) * PART_BYTES
    extra_bytes = hedging.recorder.total(SOURCE_HEDGED_BYTES)
    assert 2 * PART_BYTES <= extra_bytes <= PARTS_AT_FIRST * PART_BYTES + SHARE * read_bytes


async def test_case_12_everything_slow(server: S3Server, hedging: Rig) -> None:
    """Where every first byte is late the account is soon empty: requests stay within the share, and nothing fails."""
    ref = await seasoned(hedging)
    before = asked(server)
    server.script("bucket", "key", always=fault.late(0.12))
    for _ in range(4):
        assert await hedging.fetch_ref(ref) == DATA
    parts = 7 * 6
    assert asked(server) - before <= 4 * 6 + PARTS_AT_FIRST + SHARE * parts + 1  # the objects' last parts are short
    assert hedging.recorder.total(SOURCE_HEDGED_BYTES) <= (PARTS_AT_FIRST + SHARE * parts) * PART_BYTES
    assert hedging.recorder.total(SOURCE_RETRIES) == 0


async def test_case_12_no_second_while_throttled(server: S3Server, hedging: Rig) -> None:
    """A store that asks to slow down is not asked for anything twice, however late its answers are."""
    ref = await seasoned(hedging)
    hedges = hedging.recorder.total(SOURCE_HEDGES)
    server.script("bucket", "key", fault.slow_down(), *[fault.late(0.2)] * 3)
    assert await hedging.fetch_ref(ref) == DATA
    assert hedging.recorder.total(SOURCE_RETRIES, reason="throttled") == 1
    assert hedging.recorder.total(SOURCE_HEDGES) == hedges
