"""The connections to one peer, and whether it is left alone."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import CacheError, FeeddError, StoreUnavailable
from feedd.fetch.s3.range_answer import RangeHead, check_head
from feedd.fetch.s3.sdk_errors import FOREIGN, RequestContext
from feedd.flow.range_sinks import MemorySink
from feedd.peers.breaker import Breaker
from feedd.peers.entry_requests import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.s3.connection_pool import ConnectionPool
    from feedd.fetch.s3.http_answer import Answer
    from feedd.protocols import Clock
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef, ReadProgress

WAIT_S: Final = 60.0
"""Longest wait for a peer that fetches an entry and shows that it is alive."""
_RATE_FLOOR_BYTES_S: Final = 8 << 20
"""A peer that sends more slowly than this is slower than the store."""
_RATE_S: Final = 1.0
_HELD, _FETCHING = 200, 202
_FAILURES: Final[tuple[type[BaseException], ...]] = (*FOREIGN, FeeddError)
_log = structlog.get_logger(__name__)


class Promise(enum.Enum):
    """A peer's answer to the question for an entry."""

    HELD = "held"
    REFUSED = "refused"
    FAILED = "failed"


class PeerLink:
    """One peer. Belongs to the loop of its connections.

    Args:
        member: the peer's address.
        pool: connections to it.
        timeout_s: longest silence; see ``PeerOptions.timeout_s``.
        clock: times the pauses.
        on_failed: called when the peer begins to be left alone.

    Attributes:
        member: as given.
        breaker: whether the peer is left alone.
    """

    def __init__(
        self, member: str, pool: ConnectionPool, timeout_s: float, clock: Clock, on_failed: Callable[[], object]
    ) -> None:
        self.member = member
        self.breaker = Breaker()
        self._pool = pool
        self._timeout_s = timeout_s
        self._clock = clock
        self._on_failed = on_failed

    def __repr__(self) -> str:
        return f"PeerLink({self.member}, {self.breaker!r})"

    async def promise(self, ref: ObjectRef) -> Promise:
        """Ask for an entry, and wait while the peer fetches it.

        A peer that does not answer costs one timeout, connecting included.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status(ref)
            if status == _FETCHING:
                async with asyncio.timeout(WAIT_S):
                    status = await self._status(ref, wait=True)
        except _FAILURES as error:
            self.failed(error)
            return Promise.FAILED
        self.breaker.answered()
        return Promise.HELD if status == _HELD else Promise.REFUSED

    async def read(self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress) -> bool:
        """Write a range of an entry to ``sink``; return False if the peer does not have the entry any more.

        Raises:
            StoreUnavailable: the peer failed, or sent anything but the range.
            CacheError: the sink cannot be written.
        """
        request = RequestContext("read", ref.url, self.member, ref.etag)
        progress.answered_by = f"peer {self.member}"

        def judge(answer: Answer) -> None:
            head = answer.headers
            got = RangeHead(answer.status, head.get("etag", ""), head.get("content-range"), answer.size_bytes)
            check_head(got, ref, span, request)

        try:
            async with asyncio.timeout(_RATE_S + span.size_bytes / _RATE_FLOOR_BYTES_S):
                head = render(self.member, ref, span)
                answer = await self._pool.request(head, sink, judge, progress=progress)
        except CacheError:
            raise
        except _FAILURES as error:
            self.failed(error)
            message = f"the peer {self.member} failed: {_line(error)}"
            raise StoreUnavailable(message, object=ref.url, stage="source") from error
        self.breaker.answered()
        return answer.status < 300

    def failed(self, error: BaseException) -> None:
        """Leave the peer alone for a while, if it failed or was late several times in a row."""
        now_s = self._clock.monotonic_s()
        is_late = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        if self.breaker.late(now_s) if is_late else self.breaker.failed(now_s):
            _log.warning("a peer failed: the store is used in its place", peer=self.member, error=_line(error))
            self._on_failed()

    async def probe(self) -> None:
        """Find out whether the peer answers again."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._status(None)
        except _FAILURES:
            self.breaker.probe_failed(self._clock.monotonic_s())
        else:
            self.breaker.probe_succeeded(self._clock.monotonic_s())
            _log.info("a peer answers again", peer=self.member)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def _status(self, ref: ObjectRef | None, *, wait: bool = False) -> int:
        nothing = MemorySink(memoryview(bytearray()))
        answer = await self._pool.request(render(self.member, ref, wait=wait), nothing, lambda _: None)
        return answer.status


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
