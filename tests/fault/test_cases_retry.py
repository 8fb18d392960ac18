"""Cases 1 to 4, 8, 21, 22 and 53: what is sent again, how often, and what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from feedd.errors import NotFound, StoreUnavailable, Throttled
from feedd.metrics import SOURCE_RETRIES, SOURCE_RETRY_WAIT
from tests.fakes.s3 import faults as fault
from tests.fault.jumping_clock import READS
from tests.fault.s3_rig import DATA, EVERY_WAY, PART_BYTES, asked, opened
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.fakes.s3.server import S3Server
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


@EVERY_WAY
async def test_case_01_slow_down_twice(server: S3Server, rig: Rig) -> None:
    """After two 503 SlowDown the object is exact, asked for twice more, and fewer parts are in flight than before."""
    server.script("bucket", "key", fault.slow_down(), fault.slow_down())
    assert await rig.fetch() == DATA
    assert asked(server) == PART_COUNT + 2
    assert rig.recorder.total(SOURCE_RETRIES, reason="throttled") == 2
    assert rig.sources.buckets.state("s3://bucket").concurrency.limit < rig.options.parts_in_flight


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
    assert refused_count <= 16 + 60 / 4 + 8  # of few parts, which the pace holds back too: see test_cases_storm
    assert rig.recorder.total(SOURCE_RETRY_WAIT) > 30


async def test_case_02_not_beyond_the_deadline(server: S3Server, authority: Authority, way: str) -> None:
    """A store that never recovers is an error when the deadline is over."""
    async with opened(server.url, authority, way, retry_deadline_s=120.0) as rig:
        server.script("bucket", "key", always=fault.slow_down())
        with pytest.raises(Throttled):
            await rig.fetch()
        assert 30 < rig.clock.now_s <= 125


async def test_case_02_retries_are_paid_for(server: S3Server, rig: Rig) -> None:
    """Each retry is charged to the bucket's quota, whose balance grows by a tenth of what goes well."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    quota = rig.sources.buckets.state("s3://bucket").quota
    before = quota.balance
    server.script("bucket", "key", *[fault.slow_down(), None] * PART_COUNT)
    assert await rig.fetch_ref(ref) == DATA
    retries = rig.recorder.total(SOURCE_RETRIES)
    assert retries == PART_COUNT
    earned = quota.balance - (before - retries)
    assert 0 <= earned <= 0.1 * (PART_COUNT + 1) + 1e-6


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
    before = len(server.requests)
    server.delete("bucket", "key")
    with pytest.raises(NotFound) as caught:
        await rig.fetch_ref(ref)
    assert caught.value.object == "s3://bucket/key"
    assert rig.recorder.total(SOURCE_RETRIES) == 0
    assert asked(server) <= PART_COUNT
    assert 1 <= len(server.requests) - before <= PART_COUNT + 1, "its parts, and its checksum"


async def test_case_22_hole_in_the_store(server: S3Server, rig: Rig) -> None:
    """One range that is gone is a typed error at once; the other parts' requests are not left running."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.script("bucket", "key", None, None, fault.missing())
    with pytest.raises(NotFound) as caught:
        await rig.fetch_ref(ref)
    assert caught.value.object == "s3://bucket/key"
    assert rig.recorder.total(SOURCE_RETRIES) == 0
    assert 3 <= asked(server) <= PART_COUNT


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct"], indirect=True)
@pytest.mark.usefixtures("aws_credentials")
def test_case_53_clock_jumps(server: S3Server, tmp_path: Path) -> None:
    """Where the wall clock jumps by hours reads are exact, none waits for it, and a signature serves many requests."""
    server.script("bucket", "key", fault.slow_down(), fault.reset_in_body(100), fault.internal_error())
    command = [sys.executable, "-m", "tests.fault.jumping_clock", server.url, str(tmp_path)]
    places = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": places}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    came = json.loads(done.stdout)
    assert came["exact"] == [True] * READS
    assert came["signed_count"] <= 2 + 2, "signed for the template, for the first request, and after each refusal"
    assert came["slept_s"] < 60
    assert asked(server) == READS * PART_COUNT + 3
