"""Cases 23 to 26: who we are, and when. Credentials that are refused, run out or are replaced; clocks that are off."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from botocore.utils import ContainerMetadataFetcher
from structlog.testing import capture_logs

from feedd.errors import PermissionDenied
from feedd.fetch.s3 import credentials as s3_credentials
from feedd.metrics import SOURCE_REQUESTS, SOURCE_RETRIES
from feedd.values import ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.raw_server import RawServer
from tests.fakes.s3 import faults as fault
from tests.fault.s3_rig import DATA, EVERY_WAY, SIGNED, Rig, asked, opened

if TYPE_CHECKING:
    from tests.fakes.s3.server import S3Server
    from tests.unit.serve.certs import Authority

CLOCK = "this machine's clock is wrong: requests are signed with the store's time"
RENEWED = "the store no longer accepts the credentials: reading the credential chain again"
FAST = pytest.mark.parametrize("way", ["direct"])


async def test_case_23_denied_fails_fast(server: S3Server, rig: Rig) -> None:
    """A refusal is final: each part is asked for once at most, nothing is sent again, the permission is named."""
    server.script("bucket", "key", always=fault.denied())
    with pytest.raises(PermissionDenied, match="s3:GetObject"):
        await rig.fetch()
    assert asked(server) <= 6
    assert rig.recorder.total(SOURCE_RETRIES) == 0


async def test_case_23_denied_on_one_key_of_many(server: S3Server, rig: Rig) -> None:
    """One key of many that may not be read fails by name; the others are read as if nothing were."""
    for index in range(5):
        server.put("bucket", f"many/{index}", DATA[index:])
    server.script("bucket", "many/3", always=fault.denied())
    refs = await rig.sources.resolve(["s3://bucket/many/"])
    results = await asyncio.gather(*map(rig.fetch_ref, refs), return_exceptions=True)
    for index, result in enumerate(results):
        if index == 3:
            assert isinstance(result, PermissionDenied)
            assert result.object == "s3://bucket/many/3"
        else:
            assert result == DATA[index:]


@EVERY_WAY
@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "RequestExpired"])
@pytest.mark.usefixtures("aws_credentials")
async def test_case_24_expired_for_all_parts_at_once(
    server: S3Server, authority: Authority, way: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all parts under way find their credentials expired others are looked up once; only those parts repeat."""
    async with opened(server.url, authority, way, SIGNED, parts_in_flight=6, bytes_in_flight=len(DATA)) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        assert await rig.fetch_ref(ref) == DATA
        before = asked(server)
        server.gate.refuse("test-access-key", code)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fresh-access-key")
        with capture_logs() as logs:
            assert await rig.fetch_ref(ref) == DATA
        looked_up = [entry for entry in logs if entry["event"] == RENEWED]
        assert len(looked_up) == 1
        keys = [request.headers["authorization"].split("/")[0] for request in server.requests if request.op == "GET"]
        fresh = [key.endswith("fresh-access-key") for key in keys[before:]]
        assert fresh.count(True) == 6
        assert fresh.count(False) <= 6
        assert rig.recorder.total(SOURCE_RETRIES) == 0
        assert rig.recorder.total(SOURCE_REQUESTS, op="read", outcome="ok") == 12


@pytest.mark.usefixtures("aws_credentials")
async def test_case_24_expired_for_good(server: S3Server, authority: Authority, way: str) -> None:
    """Where the source of credentials has no others the error says that they ran out, after two requests per part."""
    async with opened(server.url, authority, way, SIGNED) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        server.gate.refuse("test-access-key")
        with pytest.raises(PermissionDenied, match="have expired"):
            await rig.fetch_ref(ref)
        assert asked(server) <= 2 * 6


@pytest.mark.slow
@FAST
async def test_case_25_credential_source_down(
    server: S3Server, authority: Authority, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the source of credentials is down those at hand are used until they end, with one early warning."""
    now = datetime.now(UTC)  # noqa: TID251 - credentials end at a date
    ends = (now + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")  # within all refresh periods
    held = {"AccessKeyId": "held", "SecretAccessKey": "secret", "Token": "token", "Expiration": ends}
    body = json.dumps(held).encode()
    good = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    down = b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n"
    # a listing has a client of its own, which asks as well
    async with RawServer(good, good, *[down] * 40) as source:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{source.port}/creds")
        # On a busy machine the test may take longer than the pause, and an answer longer than botocore waits.
        monkeypatch.setattr(s3_credentials, "_ASK_AGAIN_S", PATIENT_S * 10)
        monkeypatch.setattr(ContainerMetadataFetcher, "TIMEOUT_SECONDS", PATIENT_S)
        async with opened(server.url, authority, way, SIGNED) as rig:
            ref = ObjectRef("s3://bucket", "key", len(DATA), hashlib.md5(DATA, usedforsecurity=False).hexdigest())
            source._answers.pop(0)
            with capture_logs() as logs:
                assert await rig.fetch_ref(ref) == DATA
                questions = len(source.requests)
                assert await rig.fetch_ref(ref) == DATA
            warned = [entry for entry in logs if entry["event"] == "credentials cannot be refreshed"]
            assert len(warned) == 1
            assert 0 < warned[0]["usable_for_s"] <= 300
            assert len(source.requests) == questions, "expected the source to be left alone"
            assert rig.recorder.total(SOURCE_RETRIES) == 0


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize("ahead_s", [1200, -1200], ids=["behind", "ahead"])
async def test_case_26_clock_off_by_20_minutes(
    server: S3Server, authority: Authority, way: str, ahead_s: float
) -> None:
    """A machine whose clock is 20 minutes off learns the store's time from its answer, once, and reads everything."""
    server.gate.set_clock(ahead_s)
    async with opened(server.url, authority, way, SIGNED) as rig:
        with capture_logs() as logs:
            assert await rig.fetch() == DATA
        refused = len(server.requests)
        assert [entry["event"] for entry in logs].count(
            "this machine's clock is wrong: requests are signed with the store's time"
        ) == 1
        assert asked(server, "LIST") == 2
        assert asked(server) + asked(server, "HEAD") == 6 + 1, "the listing learned the time for all"
        assert rig.recorder.total(SOURCE_RETRIES) == 0
        ref = await rig.sources.store("s3://bucket").head("key")
        assert await rig.fetch_ref(ref) == DATA
        assert len(server.requests) == refused + 2 + 6, "nothing was refused any more"


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize("ahead_s", [3600, -3600], ids=["behind", "ahead"])
async def test_case_26_clock_off_by_an_hour_heads_first(
    server: S3Server, authority: Authority, way: str, ahead_s: float
) -> None:
    """The answer to a HEAD has no body that says why it is refused; its date does, to all that were under way."""
    server.gate.set_clock(ahead_s)
    async with opened(server.url, authority, way, SIGNED) as rig:
        store = rig.sources.store("s3://bucket")
        first, *others = await asyncio.gather(*(store.head("key") for _ in range(5)))
        assert all(other == first for other in others)
        refused = len(server.requests)
        assert await rig.fetch() == DATA
        assert len(server.requests) == refused + 1 + 1 + 6, "the listing, the checksum and the parts knew the time"
        assert rig.recorder.total(SOURCE_RETRIES) == 0


@pytest.mark.usefixtures("aws_credentials")
async def test_a_bare_refusal_is_no_matter_of_time(server: S3Server, authority: Authority, way: str) -> None:
    """Where the store's time is ours, a HEAD that is refused is asked once, and the error says what to grant."""
    server.script("bucket", "key", op="HEAD", always=fault.denied())
    async with opened(server.url, authority, way, SIGNED) as rig:
        with pytest.raises(PermissionDenied, match="s3:GetObject"):
            await rig.sources.store("s3://bucket").head("key")
        assert asked(server, "HEAD") == 1


@pytest.mark.usefixtures("aws_credentials")
async def test_credentials_that_were_replaced_are_looked_up(
    server: S3Server, authority: Authority, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that an old client is refused are asked for with the credentials of now, which are looked up once."""
    async with opened(server.url, authority, way, SIGNED) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        assert await rig.fetch_ref(ref) == DATA
        server.gate.refuse("test-access-key", "AccessDenied")
        with pytest.raises(PermissionDenied):
            await rig.fetch_ref(ref)  # a young client's credentials are those of now
        monkeypatch.setattr("feedd.fetch.s3.client._RENEWED_S", -1.0)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fresh-access-key")
        with capture_logs() as logs:
            assert await rig.fetch_ref(ref) == DATA
        assert [entry["event"] for entry in logs].count(RENEWED) == 1
        assert rig.recorder.total(SOURCE_RETRIES) == 0


@pytest.mark.usefixtures("aws_credentials")
async def test_case_26_skew_without_a_date(server: S3Server, authority: Authority, way: str) -> None:
    """Where the store complains and does not tell its time the error says what to set, without a retry."""
    server.script("bucket", "key", always=fault.refused(403, "RequestTimeTooSkewed"))
    async with opened(server.url, authority, way, SIGNED) as rig:
        with pytest.raises(PermissionDenied, match="clock"):
            await rig.fetch()
        assert rig.recorder.total(SOURCE_RETRIES) == 0
