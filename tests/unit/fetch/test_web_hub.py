"""Datasets on the Hugging Face Hub: pinned revisions, redirected bytes, and where the token goes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from feedd.errors import (
    BadConfig,
    BadResponse,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.web.hub import HubStore, hub_token
from feedd.fetch.web.target import target_of
from feedd.values import ObjectRef
from tests.conformance.object_store_suite import collect, read
from tests.fakes.hub import FakeHub, blob_of, sha_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ROOT = "hf://datasets/owner/name"
OLD, NEW = b"the old content", b"the new content"


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's own token is read."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeHub]:
    """A hub with a large file and a small one."""
    async with FakeHub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url + "/")
        found.put("data/a.tar", OLD)
        found.put("README.md", b"small")
        yield found


@contextlib.asynccontextmanager
async def opened(root: str = ROOT) -> AsyncIterator[HubStore]:
    """Open the dataset, and close it."""
    store = HubStore(root, SourceOptions())
    try:
        yield store
    finally:
        await store.close()


async def test_large_and_small_files(hub: FakeHub) -> None:
    """A large file's version is its SHA-256, which verifies it; a small file's is its blob's id in git."""
    async with opened() as store:
        small, large = await collect(store, "")
        assert (small.url, small.etag) == (f"{ROOT}/README.md", blob_of(b"small"))
        assert (large.size_bytes, len(large.etag)) == (len(OLD), 64)
        found = await store.checksum(large)
        assert found is not None
        assert (found.algorithm, found.digest.hex()) == ("sha256", large.etag)
        assert await store.checksum(small) is None
        assert await read(store, small, 1, 3) == b"ma"
        assert await read(store, large, 4, 7) == b"old"


async def test_a_run_reads_the_commit_that_was_listed(hub: FakeHub) -> None:
    """Neither a push nor another listing changes what an earlier listing reads; a later listing sees the push."""
    async with opened() as store:
        (old,) = await collect(store, "data/")
        hub.put("data/a.tar", NEW)
        assert await read(store, old, 0, len(OLD)) == OLD
        (new,) = await collect(store, "data/")
        assert new.etag != old.etag
        assert await read(store, new, 0, len(NEW)) == NEW
        assert await read(store, old, 0, len(OLD)) == OLD
    async with opened(f"{ROOT}@main") as store:
        head = await store.head("data/a.tar")
        hub.put("data/a.tar", b"newer than new")
        (newest,) = await collect(store, "data/a.tar")
        assert newest.size_bytes == len(b"newer than new")
        assert await read(store, head, 0, len(NEW)) == NEW  # of the commit before, which no read has used yet
    async with opened() as store:  # a daemon that was restarted
        await collect(store, "data/")
        with pytest.raises(ObjectChanged, match=old.etag):
            await read(store, old, 0, len(OLD))


async def test_another_push_leaves_the_version(hub: FakeHub) -> None:
    """A push that does not change a file does not change its version."""
    async with opened() as store:
        before = await collect(store, "data/")
        hub.put("README.md", b"other")
        assert await collect(store, "data/") == before


async def test_a_commit_is_a_revision(hub: FakeHub) -> None:
    """A named commit stays as it is, and is looked up once."""
    hub.put("data/a.tar", NEW)
    root = f"{ROOT}@{sha_of(1)}"
    async with opened(root) as store:
        assert [ref.size_bytes for ref in await collect(store, "")] == [len(OLD)]
        (ref,) = await collect(store, "data/")
        assert ref.url == f"{root}/data/a.tar"
        assert await read(store, ref, 0, len(OLD)) == OLD
    assert len([path for path in hub.paths("hub") if "/revision/" in path]) == 1


async def test_a_file_without_a_version_is_refused(hub: FakeHub) -> None:
    """An answer of the hub must state which file it is."""
    async with opened() as store:
        (ref,) = await collect(store, "data/")
        hub.refusals = [(302, {"Location": f"{hub.cdn_url}/blob/{ref.etag}?Signature=y"})]
        with pytest.raises(ObjectChanged, match=ref.etag):
            await read(store, ref, 0, 1)


async def test_redirects_are_remembered_and_renewed(hub: FakeHub) -> None:
    """One request to the hub serves many ranges; when the address is refused, there is another."""
    async with opened() as store:
        (ref,) = await collect(store, "data/")
        hub.requests.clear()
        for at in range(4):
            assert await read(store, ref, at, at + 4) == OLD[at : at + 4]
        assert len(hub.paths("hub")) == 1
        assert len(hub.paths("cdn")) == 4
        hub.revoked.add("s1")
        assert await read(store, ref, 0, 4) == OLD[:4]
        assert len(hub.paths("hub")) == 2
    hub.lifetime_s = 5.0
    async with opened() as store:
        await collect(store, "data/")
        hub.requests.clear()
        for at in range(3):
            await read(store, ref, at, at + 4)
        assert len(hub.paths("hub")) == 3  # an address that ends within the margin serves one read


async def test_the_token_goes_to_the_hub_only(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is in requests to the hub, and in none to the host that it redirects to."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    async with opened() as store:
        for ref in await collect(store, ""):
            await read(store, ref, 0, 2)
    seen = {(server, headers.get("Authorization")) for server, _, headers in hub.requests}
    assert seen == {("hub", "Bearer hf_secret"), ("cdn", None)}


def test_the_token_needs_encryption(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    """No token crosses a network in the clear, goes to another port or host, or with a path that climbs."""
    for endpoint, sent in (("http://mirror.example", False), ("https://mirror.example", True)):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        api = HubStore(ROOT, SourceOptions())._api
        api._token = "hf_secret"
        assert bool(api.secrets(target_of(f"{endpoint}/x"))) is sent
        assert not api.secrets(target_of("https://mirror.example:8443/x"))
        assert not api.secrets(target_of(f"{endpoint}/datasets/owner/name/resolve/main/..%2f..%2fx"))


async def test_the_next_page_is_the_hubs(hub: FakeHub) -> None:
    """A listing that goes on at another host would get the token there."""
    hub.next_url = f"{hub.cdn_url}/api"
    async with opened() as store:
        with pytest.raises(Unsupported, match="next page"):
            await collect(store, "")


def test_where_the_token_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The token is found as the Hub's own tools find it."""
    assert hub_token() == ""
    (tmp_path / "token").write_text("hf_home\n")
    assert hub_token() == "hf_home"
    (tmp_path / "other").write_text("hf_path")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    assert hub_token() == "hf_path"
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    assert hub_token() == "hf_env"


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (403, "GatedRepo", PermissionDenied, "accept its terms at http"),
        (401, "RepoNotFound", NotFound, "HF_TOKEN"),
        (404, "RevisionNotFound", NotFound, "branches and tags"),
        (403, "", PermissionDenied, "token"),
        (429, "", Throttled, "pack small files"),
        (502, "", StoreUnavailable, ""),
    ],
)
async def test_refusals(hub: FakeHub, status: int, code: str, kind: type[Exception], hint: str) -> None:
    """Each refusal tells what to do: accept terms, name a token, wait."""
    hub.refusals = [(status, {"X-Error-Code": code, "RateLimit": '"api";r=0;t=55'})]
    async with opened() as store:
        with pytest.raises(kind) as caught:
            await collect(store, "data/")
        assert hint in getattr(caught.value, "hint", "")
        assert getattr(caught.value, "retry_after_s", 55.0) == 55.0
        (ref,) = await collect(store, "data/")
        hub.refusals = [(status, {"X-Error-Code": code, "Retry-After": "55"})]
        with pytest.raises(kind):
            await read(store, ref, 0, 4)


_PAGE = {"Content-Type": "text/html"}


@pytest.mark.parametrize(
    ("prefix", "passed_count"),
    [("data/", 0), ("data/", 1), ("data/", 2), ("dat", 2), ("dat", 3)],
    ids=["revision", "first page", "second page", "inner folder", "inner folder's second page"],
)
@pytest.mark.parametrize(
    ("status", "headers", "kind", "text"),
    [
        (404, _PAGE, BadConfig, "got one from a web page (status 404"),
        (410, _PAGE, BadConfig, "got one from a web page (status 410"),
        (401, _PAGE, BadConfig, "got one from a web page (status 401"),
        (403, _PAGE, BadConfig, "got one from a web page (status 403"),
        (407, {}, BadConfig, "a proxy that wants a user name and a password"),
        (511, _PAGE, BadConfig, "a proxy that wants a user name and a password"),
        (403, {"Server": "squid/6.1", **_PAGE}, BadConfig, "a proxy or a web filter"),
        (404, {}, NotFound, "status 404"),
        (404, {"X-Error-Code": "RepoNotFound"}, NotFound, "RepoNotFound"),
        (401, {}, NotFound, "or it is private"),
        (200, _PAGE, BadResponse, "expected the hub's json, got an empty body"),
    ],
)
async def test_a_listing_that_is_not_whole_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    passed_count: int,
    status: int,
    headers: dict[str, str],
    kind: type[Exception],
    text: str,
) -> None:
    """A foreign or odd answer to any request of a listing is an error, and never makes a shorter dataset."""
    async with FakeHub(page_count=2) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        names = ["data/a.tar", "data/sub/b.tar", "data/sub/c.tar"]
        for name in names:
            hub.put(name, OLD)
        async with opened() as store:
            hub.refusals = [None] * passed_count + [(status, headers)]
            with pytest.raises(kind) as caught:
                await collect(store, prefix)
            assert text in str(caught.value)
            assert not hub.refusals
            assert [ref.key for ref in await collect(store, prefix)] == names


async def test_a_folder_is_missing_only_if_the_hub_says_so(hub: FakeHub) -> None:
    """The Hub's own word makes an empty listing, but not of a folder that it has just named."""
    missing = (404, {"X-Error-Code": "EntryNotFound"})
    async with opened() as store:
        assert await collect(store, "other/") == []
        hub.refusals = [None, None, missing]
        with pytest.raises(BadResponse, match="expected files in data/, which the listing names, got none"):
            await collect(store, "dat")


async def test_a_file_that_a_listing_names_twice_is_refused(hub: FakeHub) -> None:
    """A listing that repeats a file on another page would train on it twice."""
    hub.rows = [{"type": "file", "oid": "0" * 40, "path": "data/a.tar", "size": 1}]
    async with opened() as store:
        with pytest.raises(BadResponse, match="expected each file once"):
            await collect(store, "data/")


async def test_one_name_lists_its_folder_only(hub: FakeHub) -> None:
    """The URL of a file costs one listing of its folder, and many names in a folder cost one together."""
    for number in range(5):
        hub.put(f"data/sub/{number}.tar", OLD)
    async with opened() as store:
        hub.requests.clear()
        pages = store.list("data/a.tar")
        assert [ref.key for ref in await anext(pages)] == ["data/a.tar"]
        await pages.aclose()
        assert len(hub.paths("hub")) == 2
        refs = [await store.head(f"data/sub/{number}.tar") for number in range(5)]
        assert [ref.key for ref in refs] == [f"data/sub/{number}.tar" for number in range(5)]
        assert len(hub.paths("hub")) == 3
        assert [ref.key for ref in await collect(store, "data/s")] == [ref.key for ref in refs]


async def test_a_restarted_daemon_reads_what_was_listed_before(hub: FakeHub) -> None:
    """A read without a listing before it, as after a frozen manifest, finds the commit by itself."""
    async with opened() as store:
        (ref,) = await collect(store, "data/")
    async with opened() as store:
        assert await read(store, ObjectRef(ref.root, ref.key, ref.size_bytes, ref.etag), 0, 3) == OLD[:3]


@pytest.mark.parametrize(("path", "size"), [("other/b.tar", 1), ("b.tar", 1), ("dat", 1), ("data/b.tar", -1)])
async def test_files_outside_of_the_folder_are_refused(hub: FakeHub, path: str, size: int) -> None:
    """A listing of a folder that names other files, or sizes that cannot be, is no listing of it."""
    hub.rows = [{"type": "file", "oid": "0" * 40, "path": path, "size": size}]
    async with opened() as store:
        with pytest.raises(BadResponse, match="expected files below 'data/' with their sizes, got others"):
            await collect(store, "data/")


async def test_a_listing_without_an_end_is_refused(hub: FakeHub) -> None:
    """A page that names itself as the next one ends the listing with an error, after one more request."""
    hub.next_url = f"{hub.url}/api/datasets/owner/name/tree/{hub.commit_of('README.md')}/data?recursive=true&cursor=0"
    async with opened() as store:
        with pytest.raises(BadResponse, match="expected a new page, got one that was read before"):
            await collect(store, "data/")
    assert len([path for path in hub.paths("hub") if "/tree/" in path]) == 2
