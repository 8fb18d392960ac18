"""Objects in memory: the reference semantics of a store."""

from __future__ import annotations

import bisect
import hashlib
from typing import TYPE_CHECKING

from feedd.errors import NotFound, ObjectChanged
from feedd.fetch.hints import CHANGED_HINT, MISSING_HINT
from feedd.values import ObjectChecksum, ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange

_PAGE_COUNT = 1000


class MemoryStore:
    """One bucket of objects held as ``bytes``."""

    def __init__(self, root: str = "s3://memory", *, page_count: int = _PAGE_COUNT) -> None:
        self._root = root
        self._page_count = page_count
        self._objects: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"MemoryStore({self._root})"

    @property
    def root(self) -> str:
        """The bucket's URL."""
        return self._root

    def put(self, key: str, data: bytes) -> ObjectRef:
        """Store or replace an object and return its new version."""
        self._objects[key] = bytes(data)
        return self._ref(key)

    def delete(self, key: str) -> None:
        """Remove an object.

        Raises:
            KeyError: the object does not exist.
        """
        del self._objects[key]

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages in byte order; see ``ObjectStore.list``."""
        # code point order equals UTF-8 byte order, so plain string order is enough
        keys = sorted(key for key in self._objects if key.startswith(prefix))
        keys = [key for key in keys[bisect.bisect_right(keys, start_after) :] if self._objects[key] or key[-1:] != "/"]
        for at in range(0, len(keys), self._page_count):
            yield [self._ref(key) for key in keys[at : at + self._page_count] if key in self._objects]

    async def head(self, key: str) -> ObjectRef:
        """Return the current version; see ``ObjectStore.head``."""
        return self._ref(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Return None, because no checksum is stored."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Copy a range; see ``ObjectStore.read_into``."""
        current = self._ref(ref.key)
        if current.etag != ref.etag:
            raise ObjectChanged(
                f"expected etag {ref.etag}, got {current.etag}", object=ref.url, stage="source", hint=CHANGED_HINT
            )
        await sink.write(0, memoryview(self._objects[ref.key])[span.start : span.end])
        if progress is not None:
            progress.filled_bytes = span.size_bytes

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _ref(self, key: str) -> ObjectRef:
        data = self._objects.get(key)
        if data is None:
            url = f"{self._root}/{key}"
            raise NotFound("the object does not exist", object=url, hint=MISSING_HINT, stage="source")
        return ObjectRef(self._root, key, len(data), hashlib.md5(data, usedforsecurity=False).hexdigest())
