"""A store that sends no bytes: each request takes the time that a model of the store says."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from feedd.errors import NotFound, Throttled
from feedd.fetch.s3.transfer import LOW_WATER_BYTES
from feedd.values import ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.range_sink import RangeSink
    from feedd.simulation.link import SharedLink
    from feedd.values import ByteRange, ObjectChecksum

GET: Final = "get"
HEAD: Final = "head"
LIST: Final = "list"


class RequestLimit:
    """A number of requests per second that a store serves; it refuses the others. A second's requests may come at once.

    Args:
        requests_s: requests per second; 0: no limit.
    """

    def __init__(self, requests_s: float) -> None:
        self._requests_s = requests_s
        self._left = max(requests_s, 1.0)
        self._at_s = 0.0

    def admit(self, now_s: float) -> bool:
        """Whether the store serves a request that comes now."""
        if not self._requests_s:
            return True
        most = max(self._requests_s, 1.0)
        self._left = min(most, self._left + (now_s - self._at_s) * self._requests_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class SimulatedStore:
    """An ``ObjectStore`` whose answers take time and have no content.

    Args:
        root: root of the store.
        latency_s: time from a request to the first byte of its answer.
        link: link of the node to the store.
        limit: requests that the store serves; all nodes share it.
        page_count: pages of a listing.

    Attributes:
        requests: number of requests by kind, refused ones included.
        refused_count: requests that the store refused.
        sent_bytes: bytes of all answers to ranged GETs.
    """

    def __init__(self, root: str, latency_s: float, link: SharedLink, limit: RequestLimit, page_count: int = 1) -> None:
        self._root = root
        self._latency_s = latency_s
        self._link = link
        self._limit = limit
        self._page_count = page_count
        self.requests: Counter[str] = Counter()
        self.refused_count = 0
        self.sent_bytes = 0

    def __repr__(self) -> str:
        return f"SimulatedStore({self._root})"

    @property
    def root(self) -> str:
        """Root of the store."""
        return self._root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages, each with a placeholder for its objects, which a simulation knows already."""
        del prefix
        for number in range(int(start_after or -1) + 1, self._page_count):
            await self._ask(LIST)
            yield [ObjectRef(self._root, str(number), 0, "")]

    async def head(self, key: str) -> ObjectRef:
        """Find no object: a simulation knows its objects."""
        await self._ask(HEAD)
        raise NotFound("the simulated store has no objects", object=f"{self._root}/{key}")

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Take the time of a HEAD."""
        del ref
        await self._ask(HEAD)
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Take the time of a ranged GET; write nothing.

        Raises:
            Throttled: more requests came than the store serves.
        """
        del ref, sink
        await self._ask(GET)
        noted = progress or ReadProgress()
        soon_bytes = min(span.size_bytes, LOW_WATER_BYTES)
        await self._link.transfer(soon_bytes)
        noted.first_byte_s = asyncio.get_running_loop().time()  # a transfer thread looks when so many have come
        await self._link.transfer(span.size_bytes - soon_bytes)
        noted.filled_bytes = span.size_bytes
        self.sent_bytes += span.size_bytes

    async def close(self) -> None:
        """Do nothing."""

    async def _ask(self, kind: str) -> None:
        """Wait for the first byte of an answer.

        Raises:
            Throttled: see ``read_into``.
        """
        self.requests[kind] += 1
        served = self._limit.admit(asyncio.get_running_loop().time())
        await asyncio.sleep(self._latency_s)
        if not served:
            self.refused_count += 1
            raise Throttled("the store serves fewer requests per second", object=self._root, stage="source")
