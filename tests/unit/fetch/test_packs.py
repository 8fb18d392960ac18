"""Packs: many objects fetched to their places in one entry, over a real HTTP server."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.dataset.pack_layout import is_pack, parse
from feedd.errors import FeeddError, NotFound, ObjectChanged, PermissionDenied, Unsupported
from feedd.formats.packed_objects import index_of
from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from feedd.values import ByteRange
from tests.fakes.s3 import faults as fault
from tests.fakes.sinks import into
from tests.fakes.stores import serving, sources_over
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from feedd.catalog.sources import Sources
    from feedd.catalog.url_listing import Resolved
    from feedd.range_sink import RangeSink
    from tests.fakes.s3.server import S3Server

pytestmark = pytest.mark.slow  # over a real server

BODIES = {f"t/{n % 3}/{n:03d}.jpg": bytes([n]) * (n * 37 % 500) for n in range(60)}
MIDDLE = "t/1/031.jpg"


class Watch:
    """Notes what has arrived."""

    def __init__(self) -> None:
        self.spans: list[ByteRange] = []

    def urgency(self) -> float:
        return 0.0

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        assert span.size_bytes == part.size_bytes
        self.spans.append(span)


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Start a server with small objects, some of them empty."""
    with serving(BODIES) as running:
        yield running


@pytest.fixture
def recorder() -> TallyRecorder:
    """Take measurements."""
    return TallyRecorder()


@pytest.fixture
async def sources(server: S3Server, recorder: TallyRecorder) -> AsyncIterator[Sources]:
    """Open sources over the server, that give up soon."""
    async with sources_over(server, recorder, attempts_max=2, retry_deadline_s=5) as opened:
        yield opened


async def fetched(sources: Sources, found: Resolved) -> bytes:
    """Fetch the only pack of a listing; all that is held for it is given back, whatever becomes of it."""
    (ref,) = found.refs
    assert is_pack(ref)
    target, watch = bytearray(ref.size_bytes), Watch()
    await sources.fetcher.fetch(ref, into(target), watch)
    spans = sorted(watch.spans)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == ref.size_bytes
    return bytes(target)


def check(found: Resolved, data: bytes) -> None:
    """Make sure that every object lies where the table says."""
    (packs,) = found.packs
    table = packs.table(0)
    assert data.startswith(table.render())
    edges = table.starts().tolist()
    got = {f"t/{name}": data[low:high] for name, low, high in zip(table.names(), edges[:-1], edges[1:], strict=True)}
    assert got == BODIES


async def test_objects_come_to_their_places(server: S3Server, sources: Sources, recorder: TallyRecorder) -> None:
    """One GET for each object that has bytes, with its version, and none for anything else."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    check(found, await fetched(sources, found))
    gets = [request for request in server.requests if request.op == "GET"]
    assert len(gets) == sum(1 for body in BODIES.values() if body)
    assert all(request.headers["if-match"] for request in gets)
    assert len(server.requests) == len(gets) + 1
    assert (recorder.total(FETCH_BYTES), recorder.total(FETCH_PARTS)) == (0, 0)


async def test_files_come_as_objects_do(tmp_path: Path, sources: Sources) -> None:
    """A directory of files is packed alike."""
    for key, body in BODIES.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(body)
    found = await sources.resolve_all([str(tmp_path / "t")])
    check(found, await fetched(sources, found))


@pytest.mark.parametrize(
    "passing",
    [fault.internal_error(), fault.short_body(3), fault.reset_in_body(5), fault.slow_down(0.01), fault.late(0.3)],
)
async def test_what_passes_is_retried(server: S3Server, sources: Sources, passing: fault.Fault) -> None:
    """An object that fails once, or comes late, in the middle of a pack, comes all the same."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", MIDDLE, passing)
    check(found, await fetched(sources, found))


@pytest.mark.parametrize(
    ("always", "kind"),
    [
        (fault.short_body(3), FeeddError),
        (fault.changed_etag(), Unsupported),
        (fault.other_range(), FeeddError),
    ],
)
async def test_an_object_that_does_not_come_is_named(
    server: S3Server, sources: Sources, recorder: TallyRecorder, always: fault.Fault, kind: type[FeeddError]
) -> None:
    """One object that is too short or another one fails its pack, and the error names it."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", MIDDLE, always=always)
    with pytest.raises(kind) as caught:
        await fetched(sources, found)
    assert caught.value.object == f"s3://bucket/{MIDDLE}"
    assert (recorder.total(FETCH_BYTES), recorder.total(FETCH_PARTS)) == (0, 0)
    server.calm()
    check(found, await fetched(sources, found))


async def test_a_pack_does_without_single_objects(server: S3Server, sources: Sources) -> None:
    """What is gone is marked in the table; zeros lie in its place, all else in its own."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    lost = [MIDDLE, "t/2/008.jpg"]
    for key in lost:
        server.script("bucket", key, always=fault.missing())
    (ref,), watch = found.refs, Watch()
    target = memoryview(bytearray(b"\xee" * ref.size_bytes))
    await sources.fetcher.fetch(ref, into(target), watch)
    table = parse(target)
    names = table.names()
    assert sorted(f"t/{names[number]}" for number in table.lost) == lost
    edges = table.starts().tolist()
    for name, low, high in zip(names, edges[:-1], edges[1:], strict=True):
        body = BODIES[f"t/{name}"]
        assert bytes(target[low:high]) == (bytes(len(body)) if f"t/{name}" in lost else body)
    index = index_of(table)
    assert sorted(index.key(n) for n in np.flatnonzero(index.sizes[0] < 0).tolist()) == ["1/031", "2/008"]
    assert watch.spans[-1] == ByteRange(0, table.size_bytes), "the table comes again, last"


@pytest.mark.parametrize("refusal", [fault.missing(), fault.denied()])
async def test_one_refusal_is_no_lost_object(server: S3Server, sources: Sources, refusal: fault.Fault) -> None:
    """An object that is missing or refused once is asked for again when the rest is here, and comes."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    for key in [key for key, body in BODIES.items() if body][:3]:
        server.script("bucket", key, refusal)
    (ref,), watch = found.refs, Watch()
    target = memoryview(bytearray(ref.size_bytes))
    await sources.fetcher.fetch(ref, into(target), watch)
    check(found, bytes(target))
    assert parse(target).lost == ()


async def test_what_may_not_be_read_is_an_error(server: S3Server, sources: Sources) -> None:
    """An object that is refused twice ends the fetch, and is named: its sample is there, and may not be left out."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.script("bucket", MIDDLE, always=fault.denied())
    with pytest.raises(PermissionDenied) as caught:
        await fetched(sources, found)
    assert caught.value.object == f"s3://bucket/{MIDDLE}"
    assert sum(request.key == MIDDLE for request in server.requests) == 2


@pytest.mark.parametrize(("always", "kind"), [(fault.missing(), NotFound), (fault.denied(), PermissionDenied)])
@pytest.mark.parametrize("count", [4, 60])
async def test_many_that_are_gone_are_an_error(
    server: S3Server, sources: Sources, always: fault.Fault, kind: type[FeeddError], count: int
) -> None:
    """More than a sixteenth of a pack is no matter of single objects: one of them is named."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    gone = [key for key, body in BODIES.items() if body][:count]
    for key in gone:
        server.script("bucket", key, always=always)
    with pytest.raises(kind) as caught:
        await fetched(sources, found)
    assert caught.value.object in [f"s3://bucket/{key}" for key in gone]


async def test_a_pack_of_one_cannot_do_without_it(server: S3Server, sources: Sources) -> None:
    """Nothing would be left of it."""
    server.put("bucket", "one/a.jpg", b"only")
    found = await sources.resolve_all(["s3://bucket/one/"])
    server.script("bucket", "one/a.jpg", always=fault.missing())
    with pytest.raises(NotFound):
        await fetched(sources, found)


async def test_an_object_written_anew_is_named(server: S3Server, sources: Sources) -> None:
    """An object that was replaced after the listing is not taken."""
    found = await sources.resolve_all(["s3://bucket/t/"])
    server.put("bucket", MIDDLE, b"another")
    with pytest.raises(ObjectChanged) as caught:
        await fetched(sources, found)
    assert caught.value.object == f"s3://bucket/{MIDDLE}"


async def test_a_pack_nobody_holds_is_told(sources: Sources) -> None:
    """Where the listing is gone, its packs cannot be fetched, and that is said."""
    (ref,) = await sources.resolve(["s3://bucket/t/"])
    await asyncio.to_thread(gc.collect)  # a thread of the pool holds its last result until it has another
    with pytest.raises(ObjectChanged, match="listing"):
        await sources.fetcher.fetch(ref, into(bytearray(ref.size_bytes)))


async def test_one_object_and_a_manifest(server: S3Server, sources: Sources) -> None:
    """A URL that is an object's key names only that; a manifest's objects are packed in its order."""
    (one,) = await sources.resolve([f"s3://bucket/{MIDDLE}"])
    assert one.key == f"{MIDDLE}+0"
    server.put("bucket", "x.manifest", b'[{"prefix": "s3://bucket/t/"}, "2/002.jpg", "1/001.jpg"]')
    found = await sources.resolve_all(["manifest+s3://bucket/x.manifest"])
    assert found.packs[0].table(0).names() == ["2/002.jpg", "1/001.jpg"]
