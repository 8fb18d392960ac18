"""A store that counts and times its requests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.fetch.pages import closing_pages
from feedd.metrics import SOURCE_BYTES, SOURCE_FIRST_BYTE, SOURCE_REQUESTS, SOURCE_ROUND_TRIP, SOURCE_SECONDS
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef


class MeteredStore:
    """Records each request with its outcome: ``ok``, ``cancelled``, or the kind of the error."""

    def __init__(self, inner: ObjectStore, recorder: Recorder, clock: Clock) -> None:
        self._inner = inner
        self._recorder = recorder
        self._clock = clock

    def __repr__(self) -> str:
        return f"MeteredStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages; each page counts as one request, and so does finding the end."""
        async with closing_pages(self._inner.list(prefix, start_after)) as pages:
            while True:
                with self._measured("list"):
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store."""
        with self._measured("head"):
            return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store; see ``ObjectStore.checksum``."""
        with self._measured("checksum"):
            return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store."""
        noted = progress or ReadProgress()
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

    @contextlib.contextmanager
    def _measured(self, op: str) -> Generator[None, None, None]:
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
