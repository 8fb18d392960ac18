"""The S3 faces of Google Cloud Storage and of Oracle Cloud: regions, checksums, and what they refuse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from feedd.errors import PermissionDenied, Unsupported
from feedd.fetch.checksums import digest_of
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3 import client
from feedd.fetch.s3.client import is_google, region_of_endpoint
from feedd.fetch.s3.store import S3Store
from tests.conformance.object_store_suite import collect, read
from tests.fakes.s3.faces import FaceServer
from tests.fakes.s3.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("endpoint", "google", "name"),
    [
        ("https://storage.googleapis.com", True, "auto"),
        ("https://bucket.storage.googleapis.com/", True, "auto"),
        ("https://storage.europe-west3.rep.googleapis.com", True, "auto"),
        ("https://mytenancy.compat.objectstorage.eu-frankfurt-1.oraclecloud.com", False, "eu-frankfurt-1"),
        ("https://ns.vhcompat.objectstorage.us-ashburn-1.oci.customer-oci.com", False, "us-ashburn-1"),
        ("https://s3.example.com", False, None),
        ("https://storage.googleapis.com.example.com", False, None),
        ("https://[", False, None),
        (None, False, None),
    ],
)
def test_faces_are_known_by_their_host(endpoint: str | None, google: bool, name: str | None) -> None:
    """Google takes any client, Oracle that of the host; of other endpoints nothing is assumed."""
    assert is_google(endpoint) is google
    assert region_of_endpoint(endpoint) == name


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> Iterator[FaceServer]:
    """Google's face, on loopback."""
    monkeypatch.setattr(client, "_GOOGLE", re.compile(r"127\.0\.0\.1"))
    with FaceServer("gcs") as server:
        server.put("bucket", "a/x.tar", DATA)
        yield server


async def test_google_states_a_checksum_of_the_whole_object(google: FaceServer) -> None:
    """Google's CRC32C verifies objects, composed ones too; no request has a header that Google would sign otherwise."""
    store = S3Store("bucket", SourceOptions(s3={"*": S3Options(endpoint_url=google.url)}))
    try:
        (ref,) = await collect(store, "a/")
        assert await read(store, ref, 3, 700) == DATA[3:700]
        found = await store.checksum(ref)
        assert found is not None
        assert (found.algorithm, found.digest) == ("crc32c", digest_of("crc32c", DATA))
    finally:
        await store.close()


async def test_an_object_that_is_decompressed_on_the_way(google: FaceServer) -> None:
    """Google decompresses objects with Content-Encoding: gzip, and then states no length."""
    google.script("bucket", "a/x.tar", Fault(framing="close"), op="HEAD")
    google.script("bucket", "a/x.tar", Fault(framing="close", omit=("Content-Range",)), op="GET")
    store = S3Store("bucket", SourceOptions(s3={"*": S3Options(endpoint_url=google.url)}))
    try:
        with pytest.raises(Unsupported, match="known length") as caught:
            await store.head("a/x.tar")
        assert "gzip" in caught.value.hint
    finally:
        await store.close()


async def test_oracle_takes_its_own_region(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> None:
    """Requests are signed for the region in Oracle's host, whatever AWS_REGION says; no checksum is an answer."""
    with FaceServer("oci", "eu-frankfurt-1") as server:
        server.put("bucket", "a/x.tar", DATA)
        access = {"*": S3Options(endpoint_url=server.url)}
        store = S3Store("bucket", SourceOptions(s3=access))
        try:
            with pytest.raises(PermissionDenied):
                await collect(store, "a/")
        finally:
            await store.close()
        monkeypatch.setattr("feedd.fetch.s3.client.region_of_endpoint", lambda url: "eu-frankfurt-1" if url else None)
        store = S3Store("bucket", SourceOptions(s3=access))
        try:
            (ref,) = await collect(store, "a/")
            assert await read(store, ref, 3, 700) == DATA[3:700]
            assert await store.checksum(ref) is None
        finally:
            await store.close()
