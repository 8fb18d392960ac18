"""The object store suite against moto: another implementation of S3, with signed requests and AWS_* settings."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from botocore.session import get_session
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from feedd.errors import NotFound
from feedd.source.options import SourceOptions
from feedd.source.s3.direct.store import DirectStore
from feedd.source.s3.store import S3Store
from tests.conformance.object_store_suite import *  # noqa: F403 - its tests run here, against the bed below
from tests.conformance.object_store_suite import Bed, collect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("moto_url", "aws_credentials")]


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """Start moto's S3, once for the module."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=[S3Store, DirectStore])
async def bed(
    request: pytest.FixtureRequest, moto_url: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bed]:
    """Make a bucket; the store is told nothing: endpoint and credentials come from the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    bucket = f"b-{uuid.uuid4().hex}"
    client: Any = get_session().create_client("s3")  # built at run time: no type knows its methods
    client.create_bucket(Bucket=bucket)
    store = request.param(bucket, SourceOptions())
    yield Bed(
        store,
        lambda name, data: client.put_object(Bucket=bucket, Key=name, Body=data),
        lambda name: client.delete_object(Bucket=bucket, Key=name),
        odd_names=("%41", " lead", "q?x=1#y&z", "d//e"),  # moto's own routing normalises the others
        many_count=1003,
    )
    await store.close()
    client.close()
    urlopen(Request(f"{moto_url}/moto-api/reset", method="POST"), timeout=10).close()  # noqa: ASYNC210 - nothing else runs now; moto lets go of its files


async def test_missing_bucket(bed: Bed) -> None:
    """A bucket that does not exist is NotFound, with a hint about name and region."""
    store = S3Store("absent-bucket", SourceOptions())
    with pytest.raises(NotFound, match="name and region"):
        await collect(store, "")
    await store.close()
