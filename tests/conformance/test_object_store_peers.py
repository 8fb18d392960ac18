"""The object store suite over a bucket with a peer in front of it, which brings each object before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.clock import SystemClock
from feedd.errors import NotFound
from feedd.metrics import PEER_READ_BYTES, SOURCE_BYTES
from feedd.peers.peer_links import PeerLinks
from feedd.peers.peer_options import PeerOptions
from feedd.peers.peer_store import PeerStore
from tests.conformance.object_store_suite import *  # noqa: F403 - its tests run here, against the bed below
from tests.conformance.object_store_suite import Bed, read
from tests.fakes.cluster import a_node, free_address, promised
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from feedd.peers.peer_link import PeerLink
    from feedd.protocols import ObjectStore
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef, ReadProgress

pytestmark = pytest.mark.nightly


class PromisedStore(PeerStore):
    """Asks the peer for an object before each read, as a fetch does once."""

    def __init__(self, inner: ObjectStore, link: PeerLink, recorder: TallyRecorder) -> None:
        super().__init__(inner, link, recorder)
        self.link = link

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Ask, then read."""
        await promised(self.link, ref)
        await super().read_into(ref, span, sink, progress)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    """Set up a holder, and a store that reads from it."""
    address, recorder, clock = free_address(), TallyRecorder(), SystemClock()
    with S3Server() as server:
        server.create_bucket("bucket")
        async with a_node(server, tmp_path, address, (address,)) as holder:
            options = PeerOptions("127.0.0.1:0", timeout_s=20.0)
            links = PeerLinks(options, holder.sources.buckets, holder.sources.ranges, None, recorder, clock)
            store = PromisedStore(holder.sources.buckets.of("s3://bucket"), links.link(address), recorder)
            yield Bed(
                store,
                lambda name, data: server.put("bucket", name, data),
                lambda name: server.delete("bucket", name),
                put_kept=lambda name, data, algorithm, sizes: server.put("bucket", name, data, Kept(algorithm, sizes)),
                tells_progress=True,
            )
            assert holder.recorder.total(SOURCE_BYTES) or not recorder.total(PEER_READ_BYTES)
            await links.close()


@pytest.fixture
async def marker_bed(bed: Bed) -> Bed:
    """A key may end in a slash."""
    return bed


@pytest.fixture
async def keeping_bed(bed: Bed) -> Bed:
    """The bucket keeps checksums."""
    return bed


async def test_the_peer_sends_the_bytes(bed: Bed) -> None:
    """What the other tests read comes from the peer: an object that the bucket has lost can still be read."""
    bed.put("a", b"0123456789")
    ref = await bed.store.head("a")
    assert await read(bed.store, ref, 2, 7) == b"23456"
    bed.delete("a")
    assert await read(bed.store, ref, 3, 9) == b"345678"
    with pytest.raises(NotFound):
        await bed.store.head("a")
