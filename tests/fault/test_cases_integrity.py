"""Cases 17 to 20: damaged bodies, lying checksums, objects replaced under a download and between epochs."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.errors import BadResponse, ObjectChanged
from feedd.fetch.checksums import ALGORITHMS
from feedd.metrics import FETCH_DAMAGED
from feedd.values import Cursor, Topology
from tests.fakes.feeding import batches, feeding
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.checksums import Kept
from tests.fakes.sinks import content, into
from tests.fault.s3_rig import DATA, PART_BYTES, WAYS, Rig, asked

if TYPE_CHECKING:
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef, ShardFile
    from tests.fakes.s3.server import S3Server

OTHER = random.Random(19).randbytes(len(DATA))
UPLOADED = (2 * PART_BYTES, 2 * PART_BYTES, len(DATA) - 4 * PART_BYTES)  # parts of a composite checksum
FLIP_AT = 3 * PART_BYTES - 7  # in the second of those
URL, KEY = "s3://bucket/key", "key"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each way to the bytes in turn: these cases are about what is on the wire."""
    return str(request.param)


def asked_bytes(server: S3Server) -> int:
    """Return the bytes of all ranges asked for."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", request.range or "") for request in server.requests]
    return sum(int(found[2]) + 1 - int(found[1]) for found in ranges if found)


async def planned(rig: Rig) -> ObjectRef:
    """Resolve the object."""
    (found,) = await rig.sources.resolve([URL])
    return found


def cache_over(rig: Rig, directory: Path) -> Cache:
    """Open a cache over the fetcher."""
    options = CacheOptions(directory, 64 << 20, free_reserve_bytes=0)
    return Cache(options, rig.sources.fetcher, rig.recorder, rig.clock)


class Replacer:
    """Replaces the object when the first part of it is there."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.etag = ""

    def urgency(self) -> float:
        return 0.0

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        assert content(part) == DATA[span.start : span.end]
        self.etag = self.etag or self._server.put("bucket", KEY, OTHER)


def held(file: ShardFile) -> bytes:
    """Read a cached object."""
    return Path(file.path).read_bytes()[file.data_at : file.data_at + file.ref.size_bytes]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_case_17_damaged_body_full_object_checksum(rig: Rig, server: S3Server, algorithm: str) -> None:
    """A bit that flips on the way is found at completion by any checksum of the full object; all is fetched again."""
    server.put("bucket", KEY, DATA, Kept(algorithm))
    server.script("bucket", KEY, *[fault.flipped_bit(FLIP_AT)] * 6)
    assert await rig.fetch() == DATA
    assert asked_bytes(server) == 2 * len(DATA)
    assert asked(server) == 12
    assert rig.recorder.total(FETCH_DAMAGED) == len(DATA)


@pytest.mark.parametrize("algorithm", ["crc32c", "crc32", "sha256", "sha1"])
async def test_case_17_damaged_body_composite_checksum(rig: Rig, server: S3Server, algorithm: str) -> None:
    """Of an object uploaded in parts only the part with the flipped bit is fetched again."""
    server.put("bucket", KEY, DATA, Kept(algorithm, UPLOADED))
    server.script("bucket", KEY, *[fault.flipped_bit(FLIP_AT)] * 6)
    assert await rig.fetch() == DATA
    assert asked_bytes(server) == len(DATA) + UPLOADED[1]
    assert asked(server) == 8
    assert rig.recorder.total(FETCH_DAMAGED) == UPLOADED[1]


async def test_case_17_nothing_is_fetched_twice_where_all_is_well(rig: Rig, server: S3Server) -> None:
    """A good object costs each byte once and one question for its checksum."""
    server.put("bucket", KEY, DATA, Kept("crc64nvme"))
    ref = await planned(rig)
    before = len(server.requests)
    assert await rig.fetch_ref(ref) == DATA
    assert asked_bytes(server) == len(DATA)
    assert asked(server, "HEAD") == 1
    assert len(server.requests) - before == 7
    assert rig.recorder.total(FETCH_DAMAGED) == 0


@pytest.mark.parametrize("sizes", [(), UPLOADED], ids=["full", "composite"])
async def test_case_18_damaged_for_good(
    rig: Rig, server: S3Server, tmp_path: Path, way: str, sizes: tuple[int, ...]
) -> None:
    """A body that stays wrong ends in an error naming key, ETag, digests, request id and address; nothing is cached."""
    etag = server.put("bucket", KEY, DATA, Kept("crc32c", sizes))
    server.script("bucket", KEY, always=fault.flipped_bit(FLIP_AT))
    ref = await planned(rig)
    async with cache_over(rig, tmp_path / "cache") as cache:
        with pytest.raises(BadResponse) as caught:
            await cache.acquire([ref])
        told = str(caught.value)
        for part in (URL, etag, "crc32c", "fake"):  # "fake" is the request id of all answers
            assert part in told
        assert "127.0.0.1" in told
        assert caught.value.object == URL
        parts = UPLOADED[1] // PART_BYTES if sizes else 6  # fetched again: the damaged part, or all
        assert asked(server) == 6 + 2 * parts
        server.calm()
        with await cache.acquire([ref]) as pinned:
            assert held(pinned.files[0]) == DATA


async def test_case_18_the_store_s_own_checksum_is_wrong(rig: Rig, server: S3Server) -> None:
    """A checksum that was never the object's is an error and no endless loop: the bytes are not believed."""
    server.put("bucket", KEY, DATA, Kept("crc64nvme"))
    ref = await planned(rig)
    server.script("bucket", KEY, op="HEAD", always=fault.wrong_checksum())
    with pytest.raises(BadResponse, match="crc64nvme"):
        await rig.fetch_ref(ref)
    assert asked(server) == 3 * 6


async def test_case_19_replaced_during_the_download(rig: Rig, server: S3Server, tmp_path: Path) -> None:
    """An object replaced between two of its parts is an error naming both ETags; the cache keeps no mix of them."""
    old = server.put("bucket", KEY, DATA, Kept("crc64nvme"))
    ref, watch = await planned(rig), Replacer(server)
    with pytest.raises(ObjectChanged, match=old) as caught:
        await rig.sources.fetcher.fetch(ref, into(bytearray(ref.size_bytes)), watch)
    assert watch.etag
    assert watch.etag in str(caught.value)
    async with cache_over(rig, tmp_path / "cache") as cache:
        with pytest.raises(ObjectChanged, match=old):
            await cache.acquire([ref])
        fresh = await planned(rig)
        assert fresh.etag == watch.etag
        with await cache.acquire([fresh]) as pinned:
            assert held(pinned.files[0]) == OTHER


@pytest.mark.slow
async def test_case_20_replaced_between_epochs(tmp_path: Path) -> None:
    """Between epochs the run keeps its plan: the old version from the cache, or an error, and on all nodes alike."""
    nodes = [Topology(2, node, 1, 0, 2, node) for node in range(2)]
    async with feeding(tmp_path) as rig:
        rig.store.numbers(4, 4, 4, 4)
        sessions = [await rig.open(topology=topology, batch_size=2) for topology in nodes]
        marks = {session.info.fingerprint for session in sessions}
        assert len(marks) == 1
        first = [[value for batch in await batches(session) for value in batch.ints()] for session in sessions]
        rig.store.shard(3, [{"cls": b"7"}] * 4)
        second = [[v for batch in await batches(each, Cursor(1)) for v in batch.ints()] for each in sessions]
        assert sorted(first[0] + first[1]) == sorted(second[0] + second[1])  # from the cache: the old version, whole
        (ref,) = [ref for ref in sessions[0]._parts.view.refs if ref.key.endswith("03.tar")]
        await rig.cache.discard(ref)
        endings: list[str] = []
        for session in sessions:
            try:
                endings.append(str(len(await batches(session, Cursor(2)))))
            except ObjectChanged as changed:
                endings.append(changed.object)
        assert sorted(endings) == ["4", ref.url]  # one node's shard it is, and no other's
        for topology in nodes:
            with pytest.raises(ObjectChanged, match="fingerprint"):
                await rig.open(topology=topology, batch_size=2, expect_fingerprint=next(iter(marks)))
