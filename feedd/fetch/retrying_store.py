"""A store that retries requests if a retry can help."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from feedd.errors import BadResponse, FeeddError, Throttled
from feedd.fetch.pages import closing_pages
from feedd.fetch.retry_policy import RetryQuota
from feedd.flow.open_progress import note_retry
from feedd.metrics import SOURCE_RETRIES, SOURCE_RETRY_WAIT
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from feedd.fetch.retry_policy import RetryPolicy
    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef

_T = TypeVar("_T")
# An attempt that brought a sixteenth of the range does not count as failed. Without a bound, a trickle would never end.
_PROGRESS_SHARE = 16


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often and how long to retry.

    Attributes:
        policy: decides after each error.
        deadline_s: returns how long a request for that many bytes may take with all retries.
        quota: the bucket's quota of retries.
        throttled: called whenever the store asks to slow down.
    """

    policy: RetryPolicy
    deadline_s: Callable[[int], float] = lambda _: math.inf
    quota: RetryQuota = field(default_factory=RetryQuota)
    throttled: Callable[[], object] = lambda: None


class RetryStore:
    """Retries requests: a listing continues after its last key, a read where it broke off.

    A throttled request, or one without quota, waits until its deadline. ``attempts_max`` bounds attempts that brought
    next to nothing. One quota pays for all kinds of requests.

    Args:
        inner: sends each request once.
        limits: how often and how long.
        clock: measures and waits.
        recorder: counts retries and waits.
        chance: source of jitter, uniform in [0, 1).
    """

    def __init__(
        self,
        inner: ObjectStore,
        limits: RetryLimits,
        clock: Clock,
        recorder: Recorder,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._policy = limits.policy
        self._limits = limits
        self._clock = clock
        self._recorder = recorder
        self._chance = chance

    def __repr__(self) -> str:
        return f"RetryStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages, none twice; attempts are counted from the last good page on."""
        last, attempt, ends_s = start_after, 0, self._ends_s(0)
        while True:
            try:
                async with closing_pages(self._inner.list(prefix, last)) as pages:
                    async for page in pages:
                        last, attempt, ends_s = page[-1].key, 0, self._ends_s(0)
                        yield page
            except FeeddError as error:
                attempt += 1
                if not await self._may_retry(error, attempt, ends_s):
                    raise
            else:
                self._limits.quota.succeeded()
                return

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store until it succeeds or the policy gives up."""
        return await self.ask(lambda: self._inner.head(key))

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum as ``head`` gets its answer; see ``ObjectStore.checksum``."""
        return await self.ask(lambda: self._inner.checksum(ref))

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store until the range is complete or the policy gives up."""
        noted = part = progress or ReadProgress()
        ends_s = self._ends_s(span.size_bytes)
        attempt = done = 0
        while True:
            before = done
            try:
                rest = sink.part(done, sink.size_bytes) if done else sink
                await self._inner.read_into(ref, ByteRange(span.start + done, span.end), rest, part)
            except FeeddError as error:
                came_bytes = 0 if isinstance(error, BadResponse) else part.filled_bytes
                attempt = 1 if came_bytes * _PROGRESS_SHARE >= span.size_bytes else attempt + 1
                done += came_bytes
                if done and isinstance(error.__cause__, TimeoutError):  # slow is another trouble than silent
                    error.message += f": {done} of {span.size_bytes} bytes came"
                if not await self._may_retry(error, attempt, ends_s):
                    raise
            else:
                self._limits.quota.succeeded()
                return
            finally:
                if part is not noted:
                    noted.filled_bytes, noted.answered_by = before + part.filled_bytes, part.answered_by
            part = ReadProgress()

    async def ask(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call ``call``, a request that may be sent twice, until it succeeds or the policy gives up."""
        attempt, ends_s = 0, self._ends_s(0)
        while True:
            try:
                answer = await call()
            except FeeddError as error:
                attempt += 1
                if not await self._may_retry(error, attempt, ends_s):
                    raise
            else:
                self._limits.quota.succeeded()
                return answer

    def _ends_s(self, size_bytes: int) -> float:
        return self._clock.monotonic_s() + self._limits.deadline_s(size_bytes)

    async def _may_retry(self, error: FeeddError, attempt: int, ends_s: float) -> bool:
        """Return whether the request may be sent again, after any wait."""
        clock, quota = self._clock, self._limits.quota
        if isinstance(error, Throttled):
            self._limits.throttled()
        delay_s = self._policy.delay_s(error, attempt, self._chance())
        if delay_s is None or clock.monotonic_s() + delay_s > ends_s:
            return False
        note_retry(error)
        self._recorder.count(SOURCE_RETRY_WAIT, delay_s, reason=error.kind)
        await clock.sleep_s(delay_s)
        while wait_s := quota.ask(clock.monotonic_s()):
            if clock.monotonic_s() + wait_s > ends_s:
                return False
            self._recorder.count(SOURCE_RETRY_WAIT, wait_s, reason="quota")
            await clock.sleep_s(wait_s)
        # Counted only now, because the quota may never allow the retry.
        self._recorder.count(SOURCE_RETRIES, reason=error.kind)
        return True

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()
