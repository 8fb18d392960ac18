"""Assuming a role: the bucket is read with the role's credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.errors import PermissionDenied
from feedd.fetch.fetch_options import S3Options, SourceOptions
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sts_url")]
ROLE = "arn:aws:iam::123456789012:role/train"


@pytest.fixture(scope="module")
def sts_url() -> Iterator[str]:
    """Start moto's STS, once for the module."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def test_requests_are_signed_with_the_role(
    sts_url: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With role_arn the key of the requests is the role's, and its session token goes along."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
    with S3Server() as server:
        server.put("bucket", "one", b"1")
        options = SourceOptions(s3={"bucket": S3Options(endpoint_url=server.url, role_arn=ROLE)})
        async with Sources(options, TallyRecorder(), SystemClock()) as sources:
            (ref,) = await sources.resolve(["s3://bucket/one"])
            await sources.fetcher.fetch(ref, into(bytearray(1)))
        assert {request.op for request in server.requests} == {"GET", "HEAD", "LIST"}
        assert all("x-amz-security-token" in request.headers for request in server.requests)
        assert not any("test-access-key" in request.headers["authorization"] for request in server.requests)


async def test_role_needs_credentials(sts_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role cannot be assumed by nobody."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
    with S3Server() as server:
        options = SourceOptions(s3={"*": S3Options(endpoint_url=server.url, role_arn=ROLE)})
        async with Sources(options, TallyRecorder(), SystemClock()) as sources:
            with pytest.raises(PermissionDenied, match="credentials"):
                await sources.resolve(["s3://bucket/one"])
