"""Scripted misbehaviour of S3: exact bytes or the right error, and nothing held afterwards."""

from __future__ import annotations

import asyncio
import itertools
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import (
    BadResponse,
    FeeddError,
    NotFound,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from feedd.metrics import FETCH_BYTES, FETCH_PARTS, SOURCE_BYTES, SOURCE_RETRIES
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.s3 import faults as fault
from tests.fakes.sinks import into
from tests.fault.s3_rig import DATA, PART_BYTES, WAYS, Rig

if TYPE_CHECKING:
    from tests.fakes.s3.faults import Fault
    from tests.fakes.s3.server import S3Server
    from tests.unit.serve.certs import Authority

TRANSIENT = {
    "503 burst": (fault.slow_down(), fault.slow_down()),
    "503 with retry-after": (fault.slow_down(3),),
    "500": (fault.internal_error(),),
    "reset instead of an answer": (fault.reset_before(),),
    "reset in body": (fault.reset_in_body(1000), fault.reset_in_body(PART_BYTES - 1)),
    "reset at the end of the body": (fault.reset_at_end(),),
    "clean close in body": (fault.cut_body(1000), None, fault.cut_body(0)),
    "short body": (fault.short_body(1), None, fault.short_body(100)),
    "extra bytes": (fault.extra_bytes(1), None, fault.extra_bytes(70_000)),
    "wrong content-range": (fault.wrong_content_range(), None, fault.wrong_content_range(-1)),
    "200 for a range": (fault.whole_object(), None, fault.whole_object()),
    "chunks": (fault.chunked(), None, fault.chunked()),
    "until close": (fault.until_close(), None, fault.until_close()),
    "more behind the answer": (fault.surplus(1), None, fault.surplus(70_000)),
    "late first byte": (fault.late(0.2),),
    "slow drip that arrives": (fault.drip(PART_BYTES * 4),),
}


@pytest.mark.parametrize("faults", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_passing_faults_leave_exact_bytes(server: S3Server, rig: Rig, faults: tuple[Fault | None, ...]) -> None:
    """A fault that passes costs a retry, never a byte."""
    server.script("bucket", "key", *faults)
    assert await rig.fetch() == DATA
    assert rig.recorder.total(SOURCE_BYTES) == len(DATA)
    assert rig.recorder.peaks[FETCH_BYTES.name] <= 3 * PART_BYTES


async def test_retry_after_is_honoured(server: S3Server, rig: Rig) -> None:
    """A server that says when to come back is not asked before."""
    server.script("bucket", "key", fault.slow_down(7))
    assert await rig.fetch() == DATA
    assert max(rig.clock.sleeps_s) >= 7
    assert rig.recorder.total(SOURCE_RETRIES, reason="throttled") == 1


LASTING = {
    "503": (fault.slow_down(), Throttled),
    "500": (fault.internal_error(), StoreUnavailable),
    "reset before the body": (fault.reset_in_body(0), StoreUnavailable),
    "clean close before the body": (fault.cut_body(0), StoreUnavailable),
    "short body": (fault.short_body(1), BadResponse),
    "extra bytes": (fault.extra_bytes(1), BadResponse),
    "wrong content-range": (fault.wrong_content_range(), BadResponse),
    "200 for a range": (fault.whole_object(), BadResponse),
    "403 in chunks": (replace(fault.denied(), framing="chunked"), PermissionDenied),
    "404 until close": (replace(fault.missing(), framing="close", ending="close"), NotFound),
    "changed etag": (fault.changed_etag(), Unsupported),
    "403": (fault.denied(), PermissionDenied),
    "404": (fault.missing(), NotFound),
    "expired token": (fault.expired_token(), PermissionDenied),
}


@pytest.mark.parametrize(("lasting", "error"), LASTING.values(), ids=LASTING.keys())
async def test_lasting_faults_end_in_the_right_error(
    server: S3Server, rig: Rig, lasting: Fault, error: type[FeeddError]
) -> None:
    """A fault that stays ends in its own error, which names the object, after a bounded number of requests."""
    server.script("bucket", "key", always=lasting)
    with pytest.raises(error) as caught:
        await rig.fetch()
    assert type(caught.value) is error
    assert caught.value.object == "s3://bucket/key"
    assert caught.value.__cause__ is not None or error in {BadResponse, Unsupported}
    attempts = sum(request.op == "GET" for request in server.requests)
    # being told to slow down ends with the deadline, not with the attempts: then the quota and its probes are the bound
    assert attempts <= (6 + 16 + rig.options.retry_deadline_s / 4 + 8 if error is Throttled else 6 * 4)
    if not error.retryable:
        assert rig.recorder.total(SOURCE_RETRIES) == 0


@pytest.mark.parametrize("unframed", [fault.chunked(), fault.until_close()], ids=["chunks", "until close"])
async def test_bodies_without_a_length_are_read_right(server: S3Server, rig: Rig, unframed: Fault) -> None:
    """A body that states no length is received, and its bytes are counted; nothing is retried."""
    server.script("bucket", "key", always=unframed)
    assert await rig.fetch() == DATA
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_fetch_works_again_after_an_error(server: S3Server, rig: Rig) -> None:
    """A failed fetch leaves the store usable: no connection is stuck with the rest of a body."""
    server.script("bucket", "key", *[fault.extra_bytes(200_000)] * 3, *[fault.denied()] * 4)
    with pytest.raises(FeeddError):
        await rig.fetch()
    server.calm()
    assert await rig.fetch() == DATA


async def test_first_hopeless_part_stops_its_siblings(server: S3Server, rig: Rig) -> None:
    """When one part cannot succeed the others are cancelled, even while they hang."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    # the budget is three parts: two hang, the third is refused
    server.script("bucket", "key", fault.hang(), fault.hang_in_body(1000), always=fault.denied())
    async with asyncio.timeout(PATIENT_S / 2):  # the others hang for twice as long
        with pytest.raises(PermissionDenied):
            await rig.fetch_ref(ref)


STALLS = {"head": fault.hang(), "body": fault.hang_in_body(1000), "drip": fault.drip(20)}
_FEW = {("direct", "head"), ("direct", "body"), ("direct", "drip"), ("direct-tls", "body")}


def _stalls() -> list[Any]:
    """Return each way with each stall; some of them for every day."""
    every = itertools.product(WAYS, STALLS)
    return [one if one in _FEW else pytest.param(*one, marks=pytest.mark.nightly) for one in every]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "stall"), _stalls(), indirect=["way"])
async def test_stalled_answers_are_abandoned(server: S3Server, authority: Authority, way: str, stall: str) -> None:
    """A server that owes us bytes and stays silent, or nearly so, is left after the deadline."""
    rig = Rig(server.url, authority, way, connect_timeout_s=0.5, read_timeout_s=0.15, rate_floor_bytes_s=10_000_000)
    async with rig.sources:
        server.script("bucket", "key", STALLS[stall])
        assert await rig.fetch() == DATA
        server.script("bucket", "key", always=STALLS[stall])
        with pytest.raises(StoreUnavailable):
            await rig.fetch()
    rig.assert_nothing_held()


async def test_cancelled_fetch_holds_nothing(server: S3Server, rig: Rig) -> None:
    """A fetch cancelled while parts hang gives everything back, the target included."""
    (ref,) = await rig.sources.resolve(["s3://bucket/key"])
    server.script("bucket", "key", always=fault.hang_in_body(500))
    target = bytearray(ref.size_bytes)
    view = memoryview(target)
    task = asyncio.ensure_future(rig.sources.fetcher.fetch(ref, into(view)))
    await until(lambda: rig.recorder.total(FETCH_PARTS) >= 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.assert_nothing_held()
    view.release()
    target.clear()  # raises BufferError while anything still holds the memory


async def test_missing_bucket(rig: Rig) -> None:
    """A bucket that does not exist is NotFound, without retries, and says what to check."""
    with pytest.raises(NotFound, match="name and region"):
        await rig.sources.resolve(["s3://no-such-bucket/x"])
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_refused_connection_names_the_endpoint(authority: Authority) -> None:
    """Nobody at the endpoint is StoreUnavailable, after retries, and names the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    rig = Rig(url, authority)
    async with rig.sources:
        with pytest.raises(StoreUnavailable, match=url) as caught:
            await rig.fetch()
        assert "endpoint_url" in caught.value.hint
        assert rig.recorder.total(SOURCE_RETRIES) == 3


async def test_denied_listing_names_the_permission(server: S3Server, rig: Rig) -> None:
    """A listing refused for a prefix names s3:ListBucket; a refused object names s3:GetObject."""
    server.script("bucket", "", op="LIST", always=fault.denied())
    with pytest.raises(PermissionDenied, match="s3:ListBucket"):
        await rig.sources.resolve(["s3://bucket/"])
    server.script("bucket", "key", always=fault.denied())
    with pytest.raises(PermissionDenied, match="s3:GetObject"):
        await rig.fetch()  # one object needs no listing
