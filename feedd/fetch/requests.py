"""A store that sends each request once: bounded in number, counted and timed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.fetch.pages import closing_pages
from feedd.metrics import SOURCE_BYTES, SOURCE_FIRST_BYTE, SOURCE_REQUESTS, SOURCE_ROUND_TRIP, SOURCE_SECONDS
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef


class RequestStore:
    """Holds a permit for the whole life of a request, its body included; first come, first served.

    Records each request with its outcome: ``ok``, ``cancelled``, or the kind of the error. The wait for a permit does
    not count as time of the request.

    Args:
        inner: sends each request once.
        requests_max: bound on concurrent requests.
        recorder: takes the measurements.
        clock: times the requests.
    """

    def __init__(self, inner: ObjectStore, requests_max: int, recorder: Recorder, clock: Clock) -> None:
        if requests_max < 1:
            raise ValueError(f"expected room for at least one request, got {requests_max}")
        self._inner = inner
        self._permits = asyncio.Semaphore(requests_max)
        self._recorder = recorder
        self._clock = clock

    def __repr__(self) -> str:
        return f"RequestStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages.

        Each page counts as one request, and so does finding the end. Waiting for a page holds a permit, working on a
        page does not.
        """
        async with closing_pages(self._inner.list(prefix, start_after)) as pages:
            while True:
                async with self._sent("list"):
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store once a permit is free."""
        async with self._sent("head"):
            return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store once a permit is free; see ``ObjectStore.checksum``."""
        async with self._sent("checksum"):
            return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store once a permit is free."""
        noted = progress or ReadProgress()
        async with self._permits:
            began_s = self._clock.monotonic_s()
            try:
                await self._inner.read_into(ref, span, sink, noted)
            except BaseException as error:
                self._record("read", began_s, error)
                # Received bytes count, since a retry often keeps them.
                self._recorder.count(SOURCE_BYTES, noted.filled_bytes)
                raise
            self._record("read", began_s, None)
        if noted.first_byte_s is not None:
            self._recorder.observe(SOURCE_FIRST_BYTE, max(0.0, noted.first_byte_s - began_s))
        if noted.round_trip_s is not None:
            self._recorder.observe(SOURCE_ROUND_TRIP, noted.round_trip_s)
        self._recorder.count(SOURCE_BYTES, span.size_bytes)

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()

    @contextlib.asynccontextmanager
    async def _sent(self, op: str) -> AsyncGenerator[None, None]:
        async with self._permits:
            began_s = self._clock.monotonic_s()
            try:
                yield
            except BaseException as error:
                self._record(op, began_s, error)
                raise
            self._record(op, began_s, None)

    def _record(self, op: str, began_s: float, error: BaseException | None) -> None:
        outcome = "ok" if error is None else "cancelled" if isinstance(error, asyncio.CancelledError) else "internal"
        if isinstance(error, FeeddError):
            outcome = error.kind
        self._recorder.count(SOURCE_REQUESTS, op=op, outcome=outcome)
        self._recorder.observe(SOURCE_SECONDS, self._clock.monotonic_s() - began_s, op=op)
