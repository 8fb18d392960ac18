"""Each way to an S3 server, and one that is scripted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.s3.server import S3Server
from tests.fault.s3_rig import DATA, Rig, opened
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(params=["direct", pytest.param("direct-tls", marks=pytest.mark.nightly)])
def way(request: pytest.FixtureRequest) -> str:
    """Each way to the bytes in turn; TLS changes how bytes are framed, so that one case of each file shows it."""
    return str(request.param)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Make an authority that signs the server's certificate."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(way: str, authority: Authority) -> Iterator[S3Server]:
    """Start a server with one object of six parts."""
    with S3Server(cert=authority.issue("store") if way == "direct-tls" else None) as running:
        running.put("bucket", "key", DATA)
        yield running


@pytest.fixture
async def rig(server: S3Server, authority: Authority, way: str) -> AsyncIterator[Rig]:
    """Run the sources, and check the gauges at the end of each test."""
    async with opened(server.url, authority, way) as made:
        yield made
