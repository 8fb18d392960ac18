"""Retries: whether, after how long a wait, how many requests in all, and the store that sends them.

A store in trouble answers every retry with another error. Clients that each try eight times then send it up to eight
times its load; with a quota they send a tenth more. If every request fails, single probes find out when the store is
back. The decisions are pure.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from feedd.errors import BadResponse, FeeddError, Throttled
from feedd.fetch.pages import closing_pages
from feedd.flow.open_progress import note_retry
from feedd.metrics import SOURCE_RETRIES, SOURCE_RETRY_WAIT
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef
_T = TypeVar("_T")
# An attempt that brought a sixteenth of the range does not count as failed. Without a bound, a trickle would never end.
_PROGRESS_SHARE = 16


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The decision table.

    ==================  =====================================================================
    error               decision
    ==================  =====================================================================
    not retryable       give up at once
    ``BadResponse``     up to ``bad_response_attempts_max`` attempts: a store that keeps sending
                        the wrong bytes will not stop
    ``Throttled``       always, until the request's deadline. The wait grows from a separate base
                        and is never shorter than the server said
    other retryable     up to ``attempts_max``
    ==================  =====================================================================

    Attributes:
        attempts_max: attempts in total, the first included.
        bad_response_attempts_max: the same for wrong answers.
        base_s: upper bound of the first wait; doubles with each attempt.
        throttled_base_s: the same after throttling. No larger than a part's time: with a store that refuses one
            request in twenty, longer waits would cost more than the refusals. Doubling, the concurrency limit and
            the quota handle a store that keeps refusing.
        ceiling_s: upper bound of any wait, also of a wait that the server suggests.
    """

    attempts_max: int = 8
    bad_response_attempts_max: int = 3
    base_s: float = 0.2
    throttled_base_s: float = 0.1
    ceiling_s: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.bad_response_attempts_max < 1:
            raise ValueError("expected at least one attempt")

    def delay_s(self, error: BaseException, attempt: int, chance: float) -> float | None:
        """Return the wait in seconds before attempt ``attempt + 1``, or None to give up.

        Args:
            error: the error of attempt ``attempt`` (counted from 1).
            attempt: attempts made so far that count.
            chance: uniform in [0, 1): full jitter, so that a thousand throttled clients do not return together.
        """
        if not isinstance(error, FeeddError) or not error.retryable:
            return None
        limit = self.attempts_max
        if isinstance(error, BadResponse):
            limit = min(limit, self.bad_response_attempts_max)
        throttled = isinstance(error, Throttled)
        if attempt >= limit and not throttled:
            return None
        base_s = self.throttled_base_s if throttled else self.base_s
        # the exponent is capped to keep the float finite: 2.0**30 s is beyond any ceiling
        delay_s = chance * min(self.ceiling_s, base_s * 2.0 ** min(attempt - 1, 30))
        suggested_s = error.retry_after_s if isinstance(error, Throttled) else None
        if suggested_s is not None:
            delay_s = max(delay_s, min(suggested_s, self.ceiling_s))
        return delay_s


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Bounds of a ``RetryQuota``.

    Attributes:
        share: retries earned by each successful request.
        initial: retries at the start.
        balance_max: retries that can be saved up.
        probe_s: time between unpaid retries, doubled after each until a request succeeds.
        probe_max_s: upper bound of that time.
    """

    share: float = 0.1
    initial: float = 16.0
    balance_max: float = 64.0
    probe_s: float = 0.25
    probe_max_s: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.initial < 0 or self.balance_max < self.initial:
            raise ValueError(f"expected a share from 0 to 1 and 0 <= initial <= balance_max, got {self}")
        if not 0 < self.probe_s <= self.probe_max_s:
            raise ValueError(f"expected 0 < probe_s <= probe_max_s, got {self}")


class RetryQuota:
    """How many requests to one bucket may be retried: a share of the successful ones.

    Call ``ask`` before each retry, ``succeeded`` after each successful request.
    """

    def __init__(self, policy: QuotaPolicy | None = None) -> None:
        self._policy = policy or QuotaPolicy()
        self._balance = self._policy.initial
        self._probe_every_s = self._policy.probe_s
        self._probe_at_s = float("-inf")

    def __repr__(self) -> str:
        return f"RetryQuota({self._balance:.1f} left)"

    @property
    def balance(self) -> float:
        """Retries that are paid for."""
        return self._balance

    def succeeded(self) -> None:
        """Earn a share of a retry, and reset the probe interval."""
        self._balance = min(self._policy.balance_max, self._balance + self._policy.share)
        self._probe_every_s = self._policy.probe_s

    def ask(self, now_s: float) -> float:
        """Take one retry. Returns 0.0 if it may be sent now, else the seconds after which to ask again."""
        if self._balance >= 1:
            self._balance -= 1
            return 0.0
        if now_s < self._probe_at_s:
            # The sum above was rounded, possibly upwards.
            return min(self._probe_at_s - now_s, self._policy.probe_max_s)
        self._probe_at_s = now_s + self._probe_every_s
        self._probe_every_s = min(2 * self._probe_every_s, self._policy.probe_max_s)
        return 0.0


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
