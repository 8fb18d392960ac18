"""The object store suite against moto: another implementation of S3, with signed requests and AWS_* settings."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from botocore.session import get_session
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.s3.models import s3_backends

from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.checksums import ALGORITHMS
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.store import S3Store
from feedd.values import ByteRange
from tests.budget import PATIENT_S, later
from tests.conformance.object_store_suite import *  # noqa: F403 - its tests run here, against the bed below
from tests.conformance.object_store_suite import Bed, collect, condemned
from tests.fakes.s3.sdk_bodies import sdk_bodies_store

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


@pytest.fixture(scope="module")
def client(moto_url: str) -> Iterator[Any]:
    """Make a client of botocore's; built at run time: no type knows its methods."""
    session = get_session()
    session.set_credentials("test", "test-secret")
    made: Any = session.create_client("s3", region_name="us-east-1", endpoint_url=moto_url)
    yield made
    made.close()


@pytest.fixture
def sdk(client: Any, moto_url: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the client, and say to stores where it writes to."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    return client


@pytest.fixture(params=[later(sdk_bodies_store), S3Store])
async def bed(request: pytest.FixtureRequest, moto_url: str, sdk: Any) -> AsyncIterator[Bed]:
    """Make a bucket; the store is told nothing: endpoint and credentials come from the environment."""
    bucket = f"b-{uuid.uuid4().hex}"
    sdk.create_bucket(Bucket=bucket)
    store = request.param(bucket, SourceOptions())

    def put(name: str, data: bytes) -> None:
        if name.isalnum():  # thousands of them, and moto is in this process
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, name, data)
        else:
            sdk.put_object(Bucket=bucket, Key=name, Body=data)

    yield Bed(
        store,
        put,
        lambda name: sdk.delete_object(Bucket=bucket, Key=name),
        odd_names=("%41", " lead", "q?x=1#y&z", "d//e"),  # moto's own routing normalises the others
    )
    await store.close()
    urlopen(Request(f"{moto_url}/moto-api/reset", method="POST"), timeout=PATIENT_S).close()  # noqa: ASYNC210 - nothing else runs now; moto lets go of its files


@pytest.fixture
def marker_bed(bed: Bed) -> Bed:
    """Keys may end in a slash here."""
    return bed


del test_checksum_that_is_kept_is_told  # noqa: F821 - from the suite; moto keeps other checksums, whose test this is:


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_checksum_of_an_upload(bed: Bed, sdk: Any, algorithm: str) -> None:
    """What an SDK computed at the upload is what the store tells, and what the object's bytes have."""
    data = bytes(range(251)) * 100
    bucket = bed.store.root.removeprefix("s3://")
    sdk.put_object(Bucket=bucket, Key="x", Body=data, ChecksumAlgorithm=algorithm.upper())
    ref = await bed.store.head("x")
    found = await bed.store.checksum(ref)
    assert found is not None
    assert (found.algorithm, found.part_sizes) == (algorithm, ())
    assert await condemned(ref, found, data) == ()
    assert await condemned(ref, found, data[:-1] + b"x") == (ByteRange(0, len(data)),)


@pytest.mark.parametrize("kind", ["COMPOSITE", ""], ids=["told", "untold"])
async def test_composite_with_unknown_parts(bed: Bed, sdk: Any, kind: str) -> None:
    """A composite checksum of a store that does not tell its parts, as moto does not, cannot be used: None.

    Nor does it matter whether the store says that it is one.
    """
    bucket, key = bed.store.root.removeprefix("s3://"), "x"
    asked = {"ChecksumAlgorithm": "SHA256"} | ({"ChecksumType": kind} if kind else {})
    upload = sdk.create_multipart_upload(Bucket=bucket, Key=key, **asked)["UploadId"]
    where = {"Bucket": bucket, "Key": key, "UploadId": upload}
    done = sdk.upload_part(**where, PartNumber=1, Body=b"part", ChecksumAlgorithm="SHA256")
    part = {"PartNumber": 1, "ETag": done["ETag"], "ChecksumSHA256": done["ChecksumSHA256"]}
    sdk.complete_multipart_upload(**where, MultipartUpload={"Parts": [part]})
    told = sdk.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert told.get("ChecksumType", "") == kind
    assert await bed.store.checksum(await bed.store.head(key)) is None


async def test_only_the_version_that_was_meant_is_replaced(sdk: Any) -> None:
    """A PUT over a version that is not there any more, or over none where there is one, changes nothing."""
    bucket = f"b-{uuid.uuid4().hex}"
    sdk.create_bucket(Bucket=bucket)
    store = S3Store(bucket, SourceOptions())
    first = await store.put("key", b"first", "")
    assert first == await store.head("key")
    for over in ("", "0" * 32):
        with pytest.raises(ObjectChanged):
            await store.put("key", b"other", over)
    with pytest.raises(NotFound):
        await store.put("elsewhere", b"other", first.etag)
    second = await store.put("key", b"second", first.etag)
    assert second == await store.head("key")
    assert (await store.put("key", b"whatever")).size_bytes == 8
    await store.close()


async def test_missing_bucket(bed: Bed) -> None:
    """A bucket that does not exist is NotFound, with a hint about name and region."""
    store = S3Store("absent-bucket", SourceOptions())
    with pytest.raises(NotFound, match="name and region"):
        await collect(store, "")
    await store.close()
