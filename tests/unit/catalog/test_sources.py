"""Sources: URLs in, versioned objects and their bytes out, over a real HTTP server and real files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from feedd.access import Access, completed
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.errors import BadConfig, BadRequest, NotFound, PermissionDenied, Unsupported
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.metrics import SOURCE_BYTES, SOURCE_REQUESTS
from tests.fakes.s3 import faults as fault
from tests.fakes.sinks import into
from tests.fakes.stores import serving, sources_over
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = pytest.mark.slow  # over a real server


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with a few objects."""
    keys = ("train/1.tar", "train/2.tar", "train2/3.tar", "one", "one.idx")
    with serving({key: key.encode() for key in keys}) as running:
        yield running


@pytest.fixture
async def sources(server: S3Server) -> AsyncIterator[Sources]:
    """Open sources over the server."""
    async with sources_over(server) as opened:
        yield opened


async def keys(sources: Sources, *urls: str) -> list[str]:
    """Resolve and return what was found."""
    return [ref.key for ref in await sources.resolve(urls)]


async def test_prefix_object_and_bucket(sources: Sources) -> None:
    """A prefix matches letter by letter; an exact key names only itself; a bucket names everything but indexes."""
    assert await keys(sources, "s3://bucket/train/") == ["train/1.tar", "train/2.tar"]
    assert await keys(sources, "s3://bucket/train") == ["train/1.tar", "train/2.tar", "train2/3.tar"]
    assert await keys(sources, "s3://bucket/one") == ["one"]
    assert len(await keys(sources, "s3://bucket")) == 4


async def test_lists_concatenate_in_order(sources: Sources) -> None:
    """Several URLs give one list, in their order, duplicates included."""
    assert await keys(sources, "s3://bucket/one", "s3://bucket/train/", "s3://bucket/one") == [
        "one",
        "train/1.tar",
        "train/2.tar",
        "one",
    ]


async def test_nothing_found_names_the_url(sources: Sources) -> None:
    """A URL that matches nothing is NotFound, named as it was typed."""
    with pytest.raises(NotFound, match="prefix") as caught:
        await sources.resolve(["s3://bucket/train/", "s3://bucket/nothing/"])
    assert caught.value.object == "s3://bucket/nothing/"


async def test_a_path_without_files_is_no_prefix(sources: Sources, tmp_path: Path) -> None:
    """A path that names nothing is told where it is looked up, and a bare word may be a bucket."""
    cases = {
        f"{tmp_path}/none": "where the daemon runs",
        "no-folder": "did you mean s3://no-folder?",
        "s3:/no-folder/a": "did you mean s3://no-folder/a?",
    }
    for url, expected in cases.items():
        with pytest.raises(NotFound) as caught:
            await sources.resolve([url])
        assert expected in caught.value.hint
        assert "prefix" not in caught.value.hint


@pytest.mark.parametrize("key", ["train/*.tar", "train/?.tar", "train/[12].tar"])
async def test_globs_are_told_what_to_write(sources: Sources, key: str) -> None:
    """No such thing is expanded: whoever writes one learns what is."""
    with pytest.raises(NotFound) as caught:
        await sources.resolve([f"s3://bucket/{key}"])
    assert "globs are not expanded" in caught.value.hint


async def test_malformed_url_costs_no_request(server: S3Server, sources: Sources) -> None:
    """All URLs are judged before the first request."""
    with pytest.raises(BadRequest):
        await sources.resolve(["s3://bucket/train/", "ftp://x"])
    with pytest.raises(Unsupported):
        await sources.resolve(["s3://bucket/train/", "pipe:aws s3 cp s3://bucket/x -"])
    assert server.requests == []


async def test_manifest(server: S3Server, sources: Sources) -> None:
    """A manifest gives its objects, in its order, current versions."""
    lines = [{"prefix": "s3://bucket/train"}, "2/3.tar", "/2.tar", "/2.tar"]
    server.put("bucket", "x.manifest", json.dumps(lines).encode())
    refs = await sources.resolve(["manifest+s3://bucket/x.manifest"])
    assert [ref.key for ref in refs] == ["train2/3.tar", "train/2.tar", "train/2.tar"]
    assert refs[0] == (await sources.resolve(["s3://bucket/train2/3.tar"]))[0]


async def test_splits_that_a_manifest_names_are_meant(server: S3Server, sources: Sources) -> None:
    """Training and validation below one prefix are told to be read together; named one by one they are meant to be."""
    for key in ("s/train/0.tar", "s/val/0.tar"):
        server.put("bucket", key, b"x")
    lines = [{"prefix": "s3://bucket/s/"}, "train/0.tar", "val/0.tar"]
    server.put("bucket", "s.manifest", json.dumps(lines).encode())
    listed = await sources.resolve_all(["s3://bucket/s/"])
    named = await sources.resolve_all(["manifest+s3://bucket/s.manifest"])
    assert [kind.value for kind in listed.passed_over.reasons] == ["splits-together"]
    assert named.passed_over.reasons == {}
    assert named.refs == listed.refs


async def test_empty_and_missing_manifest(server: S3Server, sources: Sources) -> None:
    """An empty manifest is BadRequest, a missing one NotFound."""
    server.put("bucket", "empty.manifest", b"")
    with pytest.raises(BadRequest):
        await sources.resolve(["manifest+s3://bucket/empty.manifest"])
    with pytest.raises(NotFound):
        await sources.resolve(["manifest+s3://bucket/missing.manifest"])


async def test_object_without_permission_to_list(server: S3Server, sources: Sources) -> None:
    """Credentials that may read but not list can name an object, and are told so for a prefix."""
    server.script("bucket", "", op="LIST", always=fault.denied())
    assert await keys(sources, "s3://bucket/one") == ["one"]
    for url in ("s3://bucket/", "s3://bucket/train/", "s3://bucket/nothing"):
        with pytest.raises(PermissionDenied, match="s3:ListBucket"):
            await sources.resolve([url])


async def test_files_and_directories(sources: Sources, tmp_path: Path) -> None:
    """A directory with or without its slash, a file, and a prefix of names; a sibling directory stays out."""
    for name in ("a/1", "a/2", "ab/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    top = str(tmp_path)
    assert await keys(sources, f"file://{top}/a") == [f"{top}/a/1", f"{top}/a/2"]
    assert await keys(sources, f"{top}/a/") == [f"{top}/a/1", f"{top}/a/2"]
    assert await keys(sources, f"{top}/a/2") == [f"{top}/a/2"]
    assert await keys(sources, f"{top}/ab/") == [f"{top}/ab/3"]
    with pytest.raises(NotFound):
        await sources.resolve([f"{top}/zzz"])
    refs = await sources.resolve([top])
    assert [ref.url for ref in refs] == [f"file://{top}/{name}" for name in ("a/1", "a/2", "ab/3")]


async def test_fetcher_routes_by_root(sources: Sources, tmp_path: Path) -> None:
    """One fetcher brings objects of any store."""
    (tmp_path / "x").write_bytes(b"file bytes")
    for ref, expected in zip(
        await sources.resolve([str(tmp_path / "x"), "s3://bucket/one"]), (b"file bytes", b"one"), strict=True
    ):
        target = bytearray(ref.size_bytes)
        await sources.fetcher.fetch(ref, into(target))
        assert bytes(target) == expected


async def test_one_store_per_bucket(sources: Sources) -> None:
    """A store is opened once, and its repr shows the whole stack."""
    store = sources.buckets.of("s3://bucket")
    assert sources.buckets.of("s3://bucket") is store
    assert repr(store) == "RetryStore(HedgeStore(RequestStore(S3Store(s3://bucket))))"
    with pytest.raises(BadRequest):
        await sources.store("nfs://volume").head("key")


async def test_settings_by_bucket(server: S3Server) -> None:
    """A bucket's own settings win over the default ones; requests are measured."""
    by_bucket = {
        "bucket": S3Options(endpoint_url=server.url, anonymous=True, requester_pays=True),
        "*": S3Options(endpoint_url="not a url", anonymous=True),
    }
    recorder = TallyRecorder()
    async with Sources(SourceOptions(s3=by_bucket), recorder, SystemClock()) as sources:
        (ref,) = await sources.resolve(["s3://bucket/one"])
        await sources.fetcher.fetch(ref, into(bytearray(3)))
        with pytest.raises(BadConfig, match="not a url"):
            await sources.resolve(["s3://other/one"])
    assert {request.headers.get("x-amz-request-payer") for request in server.requests} == {"requester"}
    assert recorder.total(SOURCE_REQUESTS, op="read", outcome="ok") == 1
    assert recorder.total(SOURCE_BYTES) == 3


async def test_no_credentials_says_how_to_give_some(server: S3Server) -> None:
    """Without credentials and without anonymous the error says how to give either."""
    options = SourceOptions(s3={"*": S3Options(endpoint_url=server.url)})
    async with Sources(options, TallyRecorder(), SystemClock()) as sources:
        with pytest.raises(PermissionDenied, match="AWS_ACCESS_KEY_ID") as caught:
            await sources.resolve(["s3://bucket/one"])
        assert "anonymous" in caught.value.hint
    assert server.requests == []


async def test_unknown_profile(server: S3Server) -> None:
    """A profile that does not exist is an error of the credentials, and named."""
    options = SourceOptions(s3={"*": S3Options(endpoint_url=server.url, profile="nobody")})
    async with Sources(options, TallyRecorder(), SystemClock()) as sources:
        with pytest.raises(PermissionDenied, match="nobody"):
            await sources.resolve(["s3://bucket/one"])


async def test_environment_signs_and_names_the_endpoint(
    server: S3Server, aws_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials and endpoint come from AWS_* as in boto3: requests are signed and go there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    async with Sources(SourceOptions(), TallyRecorder(), SystemClock()) as sources:
        (ref,) = await sources.resolve(["s3://bucket/one"])
        await sources.fetcher.fetch(ref, into(bytearray(3)))
    assert all("Credential=test-access-key/" in request.headers["authorization"] for request in server.requests)


async def test_profile_from_files(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of the shared credentials file is used."""
    (tmp_path / "credentials").write_text("[train]\naws_access_key_id = from-file\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = SourceOptions(s3={"bucket": S3Options(endpoint_url=server.url, profile="train", region="eu-north-1")})
    async with Sources(options, TallyRecorder(), SystemClock()) as sources:
        await sources.resolve(["s3://bucket/one"])
    assert "Credential=from-file/" in server.requests[0].headers["authorization"]
    assert "/eu-north-1/s3/" in server.requests[0].headers["authorization"]


async def test_rules_for_a_folder_do_not_cover_files_beside_it(sources: Sources, tmp_path: Path) -> None:
    """While the folder is missing, its name would be the start of others' names."""
    for name in ("public-secret.tar", "public2/x.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    access = Access(completed(f"file://{tmp_path}/public"))
    with pytest.raises(NotFound):
        await sources.resolve([f"file://{tmp_path}/public"], access)
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "y.tar").write_bytes(b"x")
    assert [ref.key for ref in await sources.resolve([f"file://{tmp_path}/public"], access)] == [
        f"{tmp_path}/public/y.tar"
    ]
