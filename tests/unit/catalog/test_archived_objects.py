"""Objects that cannot be read are found when a dataset is opened: archived, too large for the cache, or empty."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from feedd.catalog.dataset_lister import DatasetLister, judge_empty
from feedd.catalog.learned_counts import Learned
from feedd.clock import SystemClock
from feedd.dataset.listing import Listing
from feedd.errors import BadShard, CacheTooSmall, PermissionDenied
from feedd.notices import Amount, NoticeKind, notices_of
from feedd.sessions.opening import refuse_too_large
from feedd.tables.converter import formed
from feedd.values import ArchivedRef, ObjectRef
from tests.fakes.stores import serving, sources_over
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.catalog.sources import Sources
    from tests.fakes.s3.server import S3Server

_TAR = tar_bytes([("0", {"cls": b"1"})])
_RESTORED = 'ongoing-request="false", expiry-date="Fri, 21 Dec 2029 00:00:00 GMT"'


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with shards, a note, and pictures."""
    shards = {f"t/{number:03d}.tar": _TAR for number in range(12)}
    pictures = {f"p/{number}.jpg": b"picture" for number in range(5)}
    with serving({**shards, "t/README.md": b"note", **pictures}) as running:
        yield running


@pytest.fixture
async def sources(server: S3Server) -> AsyncIterator[Sources]:
    """Open sources over the server."""
    async with sources_over(server) as opened:
        yield opened


async def test_archived_objects_are_counted_and_named(server: S3Server, sources: Sources) -> None:
    """One error at the open counts all of them and names the first."""
    for number in (3, 5, 7, 8, 9):
        server.archive("bucket", f"t/{number:03d}.tar", storage_class="GLACIER" if number % 2 else "DEEP_ARCHIVE")
    said = r"archived ones: 5, .* \(t/003.tar, t/005.tar, t/007.tar and 2 more\)"
    with pytest.raises(PermissionDenied, match=said) as caught:
        await sources.resolve(["s3://bucket/t/"])
    assert caught.value.object == "s3://bucket/t/003.tar"
    assert "restore" in caught.value.hint


async def test_objects_that_can_be_read_are_not_refused(server: S3Server, sources: Sources) -> None:
    """Restored ones, storage classes that need no restore, and archived files that are not read: the data opens."""
    plain = await sources.resolve(["s3://bucket/t/"])
    server.archive("bucket", "t/001.tar", storage_class="GLACIER", restore=_RESTORED)
    server.archive("bucket", "t/002.tar", storage_class="GLACIER_IR", restore=_RESTORED)
    server.archive("bucket", "t/README.md", storage_class="DEEP_ARCHIVE")
    server.archive("bucket", "p/1.jpg", storage_class="DEEP_ARCHIVE")
    server.requests.clear()
    found = await sources.resolve(["s3://bucket/t/"])
    assert found == plain
    assert {type(ref) for ref in found} == {ObjectRef}
    asked = [(request.key, request.range) for request in server.requests if request.op == "GET"]
    assert asked == [("t/001.tar", "bytes=0-0")]


async def test_archived_members_of_packs_are_refused(server: S3Server, sources: Sources) -> None:
    """Small objects are read in packs, and one of them that is archived is found as well."""
    server.archive("bucket", "p/3.jpg", storage_class="GLACIER")
    with pytest.raises(PermissionDenied, match=r"archived ones: 1, .* \(p/3.jpg\)"):
        await sources.resolve(["s3://bucket/p/"])


@pytest.mark.parametrize(
    "told",
    [
        {"storage_class": "GLACIER"},
        {"storage_class": "INTELLIGENT_TIERING", "archive_status": "DEEP_ARCHIVE_ACCESS"},
    ],
)
async def test_objects_that_a_manifest_names_are_asked_for(
    server: S3Server, sources: Sources, told: dict[str, str]
) -> None:
    """A HEAD tells of archived objects, also of those in an archive of Intelligent-Tiering."""
    server.archive("bucket", "t/004.tar", **told)
    names = ["s3://bucket/t/003.tar", "s3://bucket/t/004.tar"]
    server.put("bucket", "names.json", json.dumps([{"prefix": "s3://bucket/t/"}, "003.tar", "004.tar"]).encode())
    for urls in (["manifest+s3://bucket/names.json"], names, ["s3://bucket/t/{003..004}.tar"]):
        if urls == names and "archive_status" in told:
            continue  # a listing of one object does not tell
        with pytest.raises(PermissionDenied, match=r"archived ones: 1, .* \(t/004.tar\)"):
            await sources.resolve(urls)


async def test_lines_of_an_augmented_manifest_are_asked_for(server: S3Server, sources: Sources) -> None:
    """Objects that lines name are found as well."""
    server.archive("bucket", "p/3.jpg", storage_class="GLACIER")
    lines = [json.dumps({"source-ref": f"s3://bucket/p/{number}.jpg", "label": number}) for number in range(5)]
    server.put("bucket", "lines.manifest", "\n".join(lines).encode())
    with pytest.raises(PermissionDenied, match=r"archived ones: 1, .* \(p/3.jpg\)"):
        await sources.resolve(["augmented+s3://bucket/lines.manifest"])


async def test_an_object_in_the_middle_of_a_restore_is_refused(server: S3Server, sources: Sources) -> None:
    """It cannot be read yet: the store decides, not a header."""
    server.archive("bucket", "t/004.tar", storage_class="GLACIER", restore='ongoing-request="true"')
    server.put("bucket", "names.json", b'[{"prefix": "s3://bucket/t/"}, "004.tar"]')
    for url in ("s3://bucket/t/", "manifest+s3://bucket/names.json"):
        with pytest.raises(PermissionDenied, match="archived ones: 1"):
            await sources.resolve([url])


async def test_requests_for_archived_objects_are_bounded(
    server: S3Server, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many, some that are spread over all are asked for, and the error says of how many it speaks."""
    monkeypatch.setattr("feedd.catalog.archived_objects._PROBES_MAX", 4)
    for number in range(12):
        server.archive("bucket", f"t/{number:03d}.tar", storage_class="GLACIER")
    with pytest.raises(PermissionDenied, match=r"archived ones of 4 that were asked for: 4, .* \(t/000.tar, t/003.tar"):
        await sources.resolve(["s3://bucket/t/"])


def test_a_ref_of_an_archived_object_equals_the_plain_ref() -> None:
    """A storage class makes no other version of an object."""
    plain, archived = ObjectRef("s3://b", "k", 3, "e"), ArchivedRef("s3://b", "k", 3, "e")
    assert plain == archived
    assert archived == plain
    assert hash(plain) == hash(archived)
    assert {plain: 1}[archived] == 1
    assert archived != ObjectRef("s3://b", "k", 4, "e")
    assert archived != "k"
    assert type(archived.plain) is ObjectRef


def test_shards_that_never_fit_into_the_cache_are_refused() -> None:
    """They are counted and the first are named; a converted shard has another size, and is not judged by its source."""
    refs = [ObjectRef("s3://b", f"{number}.tar", 100 + number, "e") for number in range(9)]
    refuse_too_large(Listing.of(refs, 0.0), 108)
    said = r"at most 103B, .* got larger ones: 5, .* \(4.tar, 5.tar, 6.tar and 2 more\)"
    with pytest.raises(CacheTooSmall, match=said) as caught:
        refuse_too_large(Listing.of(refs, 0.0), 103)
    assert caught.value.object == "s3://b/4.tar"
    refuse_too_large(Listing.of(formed([ObjectRef("s3://b", "a.parquet", 500, "e")]), 0.0), 103)


@pytest.mark.parametrize(
    ("key", "is_lost"),
    [
        *((f"a.{ending}", True) for ending in ("tar", "parquet", "arrow", "npy", "h5", "tar.gz", "jsonl.gz", "mds-0")),
        *(
            (f"a.{ending}", False)
            for ending in ("jsonl", "csv", "txt", "tfrecord", "tfrecord-00000-of-00002", "rec", "bin", "own")
        ),
    ],
)
def test_empty_shards_are_refused_if_their_format_needs_bytes(key: str, is_lost: bool) -> None:
    """A file without lines or records is whole; other shards without bytes come from uploads that broke off."""
    listing = Listing.of([ObjectRef("s3://b", key, 0, "e"), ObjectRef("s3://b", "b.tar", 5, "e")], 0.0)
    with pytest.raises(BadShard, match=f"got empty ones: 1 .{key}.") if is_lost else contextlib.nullcontext():
        judge_empty(listing)


async def test_a_listing_notes_its_empty_objects(server: S3Server, sources: Sources) -> None:
    """A notice counts empty pictures of packs; captions may be empty, and empty shards are an error."""
    for key in ("t/013.tar", "t/014.tar", "p/1.jpg", "p/2.txt"):
        server.put("bucket", key, b"")
    lister = DatasetLister(sources, SystemClock(), Learned())
    with pytest.raises(BadShard, match=r"got empty ones: 2 \(t/013.tar, t/014.tar\)"):
        await lister.list([["s3://bucket/t/"]])
    pictures = (await lister.list([["s3://bucket/p/"]])).passed_over.reasons
    assert notices_of(pictures)[0].kind.value == "empty-objects"
    assert pictures[NoticeKind.EMPTY_OBJECTS] == Amount(1, 0, ("p/1.jpg",))


async def test_empty_shards_that_are_named_are_refused(server: S3Server, sources: Sources) -> None:
    """A manifest, a format in the URL, or nothing else below the prefix: one error at the open names them."""
    server.put("bucket", "t/013.tar", b"")
    server.put("bucket", "e/0.tar", b"")
    server.put("bucket", "names.json", b'[{"prefix": "s3://bucket/t/"}, "001.tar", "013.tar"]')
    lister = DatasetLister(sources, SystemClock(), Learned())
    for url in ("manifest+s3://bucket/names.json", "tar+s3://bucket/t/", "s3://bucket/e/"):
        with pytest.raises(BadShard, match="expected shards with bytes, got empty ones: 1 "):
            await lister.list([[url]])
