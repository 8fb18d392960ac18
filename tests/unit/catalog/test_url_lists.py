"""Lists in one URL, over a real HTTP server and real files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import structlog

from feedd.dataset.passed_over import PassedOver
from feedd.errors import BadRequest, NotFound
from feedd.prepare.sample_counter import index_url
from tests.fakes.stores import serving, sources_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from feedd.catalog.sources import Sources
    from tests.fakes.s3.server import S3Server

pytestmark = pytest.mark.slow  # over a real server

SHARDS = [f"t/{number:03d}.tar" for number in range(12)]


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with some shards in two buckets."""
    keys = (*SHARDS, "t/README.md", "v/0.tar", "w/0.tar", "w/_SUCCESS", "i/a.jpg", "i/b.jpg")
    with serving({key: key.encode() for key in keys}) as running:
        running.put("other", "t/000.tar", b"other")
        yield running


@pytest.fixture
async def sources(server: S3Server) -> AsyncIterator[Sources]:
    """Open sources over the server."""
    async with sources_over(server) as opened:
        yield opened


async def urls(sources: Sources, *given: str) -> list[str]:
    """Resolve and return what was found."""
    return [ref.url.removeprefix("s3://") for ref in await sources.resolve(given)]


async def test_braces_name_shards_in_the_order_they_are_written(server: S3Server, sources: Sources) -> None:
    """Each once as often as it is named, for a request each, and one that asks whether braces are a name."""
    found = await urls(sources, "s3://bucket/t/{010..002..4}.tar::s3://{other,bucket}/t/000.tar::s3://bucket/t/000.tar")
    assert found == [
        *(f"bucket/t/{number:03d}.tar" for number in (10, 6, 2)),
        *("other/t/000.tar", "bucket/t/000.tar", "bucket/t/000.tar"),
    ]
    ops = [request.op for request in server.requests]
    assert (ops.count("HEAD"), len(ops)) == (5, 7)


async def test_braces_name_prefixes_too(sources: Sources) -> None:
    """Folders, and the starts of names; what lies beside shards there is passed over."""
    assert await urls(sources, "s3://bucket/{v,w}/") == ["bucket/v/0.tar", "bucket/w/0.tar"]
    assert await urls(sources, "s3://bucket/{w,t/01}") == ["bucket/w/0.tar", "bucket/t/010.tar", "bucket/t/011.tar"]
    found = await sources.resolve_all(["s3://bucket/{v,w}/"])
    assert found.passed_over == PassedOver(1, ("w/_SUCCESS",))


async def test_one_that_is_missing_is_named(sources: Sources) -> None:
    """A gap in a range is an error, as it is for those who write such URLs."""
    with pytest.raises(NotFound) as caught:
        await sources.resolve(["s3://bucket/t/{010..013}.tar"])
    assert caught.value.object == "s3://bucket/t/012.tar"


async def test_what_is_called_so_goes_before(server: S3Server, sources: Sources) -> None:
    """An object, or a folder, whose name has such braces is that."""
    server.put("bucket", "t/{000..001}.tar", b"itself")
    server.put("bucket", "{v,w}/9.tar", b"itself")
    assert await urls(sources, "s3://bucket/t/{000..001}.tar") == ["bucket/t/{000..001}.tar"]
    assert await urls(sources, "s3://bucket/{v,w}/") == ["bucket/{v,w}/9.tar"]
    assert await urls(sources, "s3://bucket/t/{002..003}.tar") == ["bucket/t/002.tar", "bucket/t/003.tar"]


async def test_formats_manifests_and_samples(server: S3Server, sources: Sources) -> None:
    """A format before a list is that of all of it; manifests may be listed; objects that are samples are packed."""
    found = await sources.resolve_all(["s3://bucket/v/::tar+s3://bucket/t/{000..002}.tar::s3://bucket/w/0.tar"])
    assert found.named == {1: "tar", 2: "tar", 3: "tar"}
    assert len(found.refs) == 5
    for number in range(2):
        server.put("bucket", f"{number}.manifest", json.dumps([{"prefix": "s3://bucket/"}, SHARDS[number]]).encode())
    assert await urls(sources, "manifest+s3://bucket/{1,0}.manifest") == [f"bucket/{SHARDS[1]}", f"bucket/{SHARDS[0]}"]
    (packed,) = (await sources.resolve_all(["s3://bucket/i/{a,b}.jpg"])).packs
    assert list(packed.counts) == [2]


async def test_too_many_cost_no_request(server: S3Server, sources: Sources) -> None:
    """A range that nobody means is refused before anything is asked for."""
    with pytest.raises(BadRequest, match="at most 100000 others, got one for 1000000000"):
        await sources.resolve(["s3://bucket/one", "s3://bucket/t/{0..999999999}.tar"])
    assert not server.requests


async def test_files_are_listed_alike(sources: Sources, tmp_path: Path) -> None:
    """Paths have braces, too, and may follow one another."""
    for key in ("t/0.tar", "t/1.tar", "v/0.tar", "v/.0.tar.crc"):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(b"x")
    base = str(tmp_path)
    assert await urls(sources, f"{base}/t/{{1..0}}.tar::{base}/v") == [
        f"file://{base}/{key}" for key in ("t/1.tar", "t/0.tar", "v/0.tar")
    ]
    assert await urls(sources, f"file://{base}/{{t,v}}") == [
        f"file://{base}/{key}" for key in ("t/0.tar", "t/1.tar", "v/0.tar")
    ]


async def test_beside_files_of_tokens(server: S3Server, sources: Sources) -> None:
    """Where a recipe cuts them every object is a shard but what nanoGPT leaves there for itself."""
    for key in ("n/train.bin", "n/meta.pkl", "n/prepare.py", "n/readme.md"):
        server.put("bucket", key, b"\0\1")
    found = await sources.resolve_all(["s3://bucket/n/"], shards=True)
    assert [ref.key for ref in found.refs] == ["n/train.bin"]
    assert found.passed_over.count == 3


async def test_what_is_passed_over_is_said_once(server: S3Server, sources: Sources) -> None:
    """Every listing finds it, the log has it when it is news."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            await sources.resolve_all(["s3://bucket/w/", "s3://bucket/v/"])
        server.put("bucket", "w/.x", b"x")
        found = await sources.resolve_all(["s3://bucket/w/"])
    said = [(log["objects"], log["first"]) for log in logs if log["event"] == "objects are skipped"]
    assert said == [(1, ["w/_SUCCESS"]), (2, ["w/.x", "w/_SUCCESS"])]
    assert found.passed_over == PassedOver(2, ("w/.x", "w/_SUCCESS"))


def test_an_index_is_of_one_folder() -> None:
    """Where it would go nobody could say."""
    for url in ("s3://bucket/{v,w}/", "s3://bucket/v/::s3://bucket/w/"):
        with pytest.raises(BadRequest, match="one folder"):
            index_url(url)
