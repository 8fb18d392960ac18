"""The connections to one peer, and whether it is left alone."""

from __future__ import annotations

import asyncio
import enum
import math
from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import CacheError, FeeddError, StoreUnavailable
from feedd.fetch.s3.errors import FOREIGN, RequestContext, check_head
from feedd.flow.range_sinks import MemorySink
from feedd.peers.breaker import Breaker
from feedd.peers.entry_requests import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.s3.connection import Answer
    from feedd.fetch.s3.pool import ConnectionPool
    from feedd.peers.delay_meter import DelayMeter
    from feedd.protocols import Clock
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef, ReadProgress

WAIT_S: Final = 60.0
"""Longest wait for a peer that fetches an entry and shows that it is alive."""
_RATE_FLOOR_BYTES_S: Final = 8 << 20
"""A peer that sends more slowly than this is slower than the store."""
_RATE_S: Final = 1.0
_FAILURES: Final[tuple[type[BaseException], ...]] = (*FOREIGN, FeeddError)
_log = structlog.get_logger(__name__)


class Promise(enum.Enum):
    """A peer's answer to the question for an entry."""

    HELD = "held"
    FETCHING = "fetching"
    REFUSED = "refused"
    FAILED = "failed"


_PROMISES: Final = {200: Promise.HELD, 202: Promise.FETCHING}


class PeerLink:
    """One peer. Belongs to the loop of its connections.

    Args:
        member: the peer's address.
        pool: connections to it.
        meter: tells how long the peer may be silent.
        clock: times the pauses.
        on_failed: called when the peer begins to be left alone.

    Attributes:
        member: as given.
        breaker: whether the peer is left alone.
        heard_s: when something came from the peer, on any connection; on the loop's clock.
    """

    def __init__(
        self, member: str, pool: ConnectionPool, meter: DelayMeter, clock: Clock, on_failed: Callable[[], object]
    ) -> None:
        self.member = member
        self.breaker = Breaker()
        self._pool = pool
        self._meter = meter
        self._clock = clock
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._received_bytes = 0
        self.heard_s = -math.inf

    def __repr__(self) -> str:
        return f"PeerLink({self.member}, {self.breaker!r})"

    async def ask(self, ref: ObjectRef) -> Promise:
        """Ask for an entry. A peer that does not answer costs one timeout, connecting included."""
        return await self._promise(ref, self._silent_at_s)

    async def wait(self, ref: ObjectRef) -> Promise:
        """Wait while the peer fetches an entry and shows that it is alive."""
        return await self._promise(ref, lambda began_s: began_s + WAIT_S, wait=True)

    async def _promise(self, ref: ObjectRef, until_s: Callable[[float], float], *, wait: bool = False) -> Promise:
        try:
            async with self._meter.within(until_s):
                status = await self._status(ref, wait=wait)
        except _FAILURES as error:
            self.failed(error)
            return Promise.FAILED
        return _PROMISES.get(status, Promise.REFUSED)

    async def read(self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress) -> bool:
        """Write a range of an entry to ``sink``; return False if the peer does not have the entry any more.

        Raises:
            StoreUnavailable: the peer failed, or sent anything but the range.
            CacheError: the sink cannot be written.
        """
        request = RequestContext("read", ref.url, self.member, ref.etag)
        progress.answered_by = f"peer {self.member}"

        def judge(answer: Answer) -> None:
            check_head(answer.status, answer.headers, answer.size_bytes, ref, span, request, answer.first_bytes)

        try:
            async with self._meter.within(lambda began_s: began_s + self._read_s(span.size_bytes)):
                head = render(self.member, ref, span)
                answer = await self._pool.request(head, sink, judge, progress=progress)
        except CacheError:
            raise
        except _FAILURES as error:
            self.failed(error)
            message = f"the peer {self.member} failed: {_line(error)}"
            raise StoreUnavailable(message, object=ref.url, stage="source") from error
        return answer.status < 300

    def failed(self, error: BaseException) -> None:
        """Leave the peer alone for a while; one that was silent is probed at once."""
        now_s = self._clock.monotonic_s()
        is_silent = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        if self.breaker.silent(now_s) if is_silent else self.breaker.failed(now_s):
            _log.warning("a peer failed: others are used in its place", peer=self.member, error=_line(error))
            self._on_failed()

    async def probe(self) -> None:
        """Find out whether the peer answers again."""
        try:
            async with asyncio.timeout(self._meter.delays.longest_s):
                await self._status(None)
        except _FAILURES:
            self.breaker.probe_failed(self._clock.monotonic_s())
        else:
            self.breaker.probe_succeeded(self._clock.monotonic_s())
            _log.info("a peer answers again", peer=self.member)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    def look(self) -> None:
        """Note whether something has come since the last look."""
        # A count may shrink, because connections close and exchanges end. That is no news.
        before = self._received_bytes
        self._received_bytes = sum(sum(connection.come()) for connection in self._pool.connections)
        if self._received_bytes > before:
            self.heard_s = self._loop.time()

    def _silent_at_s(self, began_s: float) -> float:
        """Return when the peer has been silent for too long to a question that was sent at ``began_s``.

        A peer that sends something else is busy, not dead.
        """
        silent_s = max(began_s, self.heard_s) + self._meter.silence_s()
        return min(silent_s, began_s + self._meter.delays.longest_s)

    def _read_s(self, size_bytes: int) -> float:
        """Return the longest time for a read: longer while this machine is busy, as the silence is."""
        delays = self._meter.delays
        return (_RATE_S + size_bytes / _RATE_FLOOR_BYTES_S) * self._meter.silence_s() / delays.timeout_s

    async def _status(self, ref: ObjectRef | None, *, wait: bool = False) -> int:
        nothing = MemorySink(memoryview(bytearray()))
        answer = await self._pool.request(render(self.member, ref, wait=wait), nothing, lambda _: None)
        return answer.status


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
