"""A prefix of a bucket as the destination of a pack."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.access import FILE_ROOT
from feedd.catalog.bucket_stores import is_s3
from feedd.catalog.urls import parse_url
from feedd.errors import BadRequest, NotFound, ObjectChanged, Unsupported
from feedd.fetch.pages import closing_pages
from feedd.fetch.s3.store import ObjectFacts
from feedd.flow.pools import LOCAL_FILES
from feedd.flow.range_sinks import MemorySink
from feedd.pack.destination import ShardRecord
from feedd.pack.local_folder import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.catalog.sources import Sources
    from feedd.catalog.urls import Location
    from feedd.pack.destination import Destination
    from feedd.pack.packed_sample import Piece
    from feedd.values import ObjectRef

_METADATA: Final = "feedd-pack"


def destination(sources: Sources, url: str) -> Destination:
    """Return the destination that a URL names.

    Raises:
        BadRequest, Unsupported: the URL names no folder that can be written to.
    """
    location = parse_url(url)
    if location.manifest or location.format:
        message = "expected a folder or prefix to write to, got a manifest or a format"
        raise BadRequest(message, object=url, stage="pack")
    if location.root == FILE_ROOT:
        return LocalFolder(location.key)
    if not is_s3(location.root):
        message = f"expected a URL that can be written to, s3:// or a path, got {url}"
        raise Unsupported(message, object=url, stage="pack")
    return BucketFolder(sources, location)


class BucketFolder:
    """A prefix of a bucket. The record of a shard is metadata of its object, so both appear at once.

    Args:
        sources: reads and writes.
        location: the prefix.
    """

    def __init__(self, sources: Sources, location: Location) -> None:
        key = location.key if not location.key or location.key.endswith("/") else f"{location.key}/"
        self._sources = sources
        self._location = replace(location, key=key)

    @property
    def url(self) -> str:
        """See ``Destination.url``."""
        return f"{self._location.root}/{self._location.key}"

    async def read(self, name: str) -> bytes | None:
        """See ``Destination.read``."""
        try:
            ref = await self._sources.head(f"{self.url}{name}")
        except NotFound:
            return None
        data = np.empty(ref.size_bytes, np.uint8)
        await self._sources.fetcher.fetch(ref, MemorySink(data.data))
        return data.tobytes()

    async def create(self, name: str, data: bytes) -> bool:
        """See ``Destination.create``."""
        try:
            await self._put(name, data, "")
        except ObjectChanged:
            return False
        return True

    async def replace(self, name: str, data: bytes) -> None:
        """See ``Destination.replace``."""
        await self._put(name, data, None)

    async def names(self) -> set[str]:
        """See ``Destination.names``."""
        found: set[str] = set()
        start = len(self._location.key)
        async with closing_pages(self._sources.store(self._location.root).list(self._location.key)) as pages:
            async for page in pages:
                found |= {ref.key[start:] for ref in page if "/" not in ref.key[start:]}
        return found

    async def find(self, name: str, plan: str) -> ShardRecord | None:
        """See ``Destination.find``."""
        location = self._at(name)
        try:
            ref, metadata = await self._sources.work_loop.run(lambda: self._sources.buckets.describe(location))
        except NotFound:
            return None
        try:
            record = msgspec.json.decode(metadata.get(_METADATA, ""), type=ShardRecord)
        except msgspec.MsgspecError:
            record = None
        if record is None or record.size_bytes != ref.size_bytes or record.plan != plan:
            raise BadRequest(
                "expected a shard of this pack, got an object that another program or another pack has written",
                object=ref.url,
                hint="name an empty destination",
                stage="pack",
            )
        return replace(record, etag=ref.etag)

    async def write_shard(self, name: str, pieces: Iterable[Piece], plan: str, samples: int) -> ShardRecord:
        """See ``Destination.write_shard``. The store verifies the digest.

        Raises:
            BadRequest: an object of this name is not the same shard.
        """
        data, digest = await LOCAL_FILES.run(_joined, pieces)
        record = ShardRecord(plan, digest.hex(), len(data), samples)
        facts = ObjectFacts(digest, {_METADATA: msgspec.json.encode(record).decode()})
        try:
            ref = await self._put(name, data, "", facts)
        except ObjectChanged:  # another process has just written the shard, or an answer was lost
            found = await self.find(name, plan)
            if found is None or replace(found, etag="") != record:
                raise
            return found
        return replace(record, etag=ref.etag)

    async def finish(self) -> None:
        """Do nothing: there is nothing to remove."""

    async def _put(self, name: str, data: bytes, over: str | None, facts: ObjectFacts | None = None) -> ObjectRef:
        put = functools.partial(self._sources.buckets.put, self._at(name), data, over, facts)
        return await self._sources.work_loop.run(put)

    def _at(self, name: str) -> Location:
        return replace(self._location, key=f"{self._location.key}{name}")


def _joined(pieces: Iterable[Piece]) -> tuple[bytes, bytes]:
    """Return all bytes, and their SHA-256."""
    data = b"".join(pieces)
    return data, hashlib.sha256(data).digest()
