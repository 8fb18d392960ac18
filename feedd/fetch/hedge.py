"""Second requests: when a request is slow enough to send it twice, and the store that does so.

The decision is pure, from recent requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from feedd.errors import BadResponse, FeeddError, Throttled
from feedd.fetch.pages import closing_pages
from feedd.flow.side_task import Interruptible, SideTask
from feedd.metrics import SOURCE_HEDGED_BYTES, SOURCE_HEDGES
from feedd.units import MIB
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from feedd.protocols import ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef

_WINDOW_COUNT = 256
_SORT_EVERY = 64  # order statistics change slowly, so sorting at each sample would not pay off
_LEAST_GAIN, _LEAST_ROOM = 1 / 8, 1 / 4  # after hedges that lost; the room still holds the largest part
_FIRST_GAIN, _TRUSTED_GAIN = 1 / 4, 1 / 2  # hedges are trials until one has won
_TRIAL_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """Which requests count as slow, and how many bytes may be requested twice.

    A first byte is late after ``late_factor`` times the recent p95, or ``median_factor`` times the median if that is
    less. The median limit is needed because a few outliers among the first samples decide the p95. A first byte is
    never late before ``part_share`` of a part's usual time, or before ``floor_s``: a short part is not worth a second
    request. Bodies are checked half as often, because they arrive in bursts and the receiver may pause too.

    Attributes:
        samples_min: parts needed before any request is judged.
        late_factor: see above.
        median_factor: see above.
        part_share: share of the median part's time.
        floor_s: shortest time that counts as late.
        lag_max_s: a check that ran later than this proves nothing.
        slow_factor: a body this many times slower than the recent median is slow.
        first_look_s: time between checks while there are too few samples.
        share: share of the bytes read that may be requested again.
        saved_bytes: the most bytes for second requests that can be saved up; a quarter of them is there at the start.
        quiet_s: time without hedges after the store asked to slow down, and after a trial that has not won.
    """

    samples_min: int = 8
    late_factor: float = 2.0
    median_factor: float = 4.0
    part_share: float = 0.25
    floor_s: float = 0.05
    lag_max_s: float = 0.02
    slow_factor: float = 4.0
    first_look_s: float = 0.1
    share: float = 0.05
    saved_bytes: int = 64 * MIB
    quiet_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """The progress of one request at one moment.

    Attributes:
        at_s: time since the request was sent.
        filled_bytes: bytes received by then.
        first_byte_s: time from sending the request to the first byte; None: no byte has come.
        lag_s: how much later than planned the check ran.
    """

    at_s: float
    filled_bytes: int = 0
    first_byte_s: float | None = None
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hedge:
    """Request the missing bytes again; they are charged to the account."""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Check again in ``after_s`` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Stop checking this request."""


@dataclass(frozen=True, slots=True)
class _Usual:
    """Recent medians and p95: seconds to the first byte, bytes per second of a body."""

    first_p50_s: float
    first_p95_s: float
    rate_p50: float


class Hedger:
    """Judges the requests to one bucket. Time comes in from outside; nothing is random.

    Hedges are paid from an account that gains a share of the bytes read. So a store that is slow as a whole does not
    get every request twice.

    Where many bodies share a saturated link or processor, some are late and come all the same before their hedges. So
    each hedge that loses halves what the account gains and holds, and each that wins doubles it. An eighth of the gain
    and a quarter of the room stay. A hedger begins with a quarter of both. Below half of the gain hedges are trials:
    requests have three times the time, and the next hedge waits until the trial has won, or for ``quiet_s``.
    """

    def __init__(self, policy: HedgePolicy | None = None) -> None:
        self._policy = policy or HedgePolicy()
        self._first_s: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._rates: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self._gain = _FIRST_GAIN  # share of the policy's share, by the outcomes of recent hedges
        self._account_bytes = self._room_bytes
        self._quiet_until_s = self._trial_until_s = float("-inf")
        self._usual: _Usual | None = None
        self._unsorted_count = 0

    def __repr__(self) -> str:
        return f"Hedger({len(self._first_s)} samples, {int(self._account_bytes)} bytes to spend)"

    @property
    def account_bytes(self) -> float:
        """Bytes that may be requested a second time now."""
        return self._account_bytes

    def look_after_s(self, size_bytes: int) -> float | None:
        """Return the time from sending a request to its first check, or None for never."""
        if not size_bytes or not self._policy.share:
            return None
        if self._usual is None:
            return self._policy.first_look_s
        return self._late_s(self._usual, size_bytes)

    def judge(self, size_bytes: int, sight: Sight, before: Sight | None, now_s: float) -> Hedge | LookAgain | Leave:
        """Decide about a request for ``size_bytes``; for ``Hedge``, the missing bytes are charged.

        Args:
            size_bytes: size of the whole request.
            sight: progress of the request now.
            before: progress at the previous check.
            now_s: time on the clock that ``throttled`` uses.
        """
        rest_bytes = size_bytes - sight.filled_bytes
        if rest_bytes <= 0:
            return Leave()
        usual = self._usual
        if usual is None:
            return LookAgain(self._policy.first_look_s)
        pause_s = 2 * max(self._policy.floor_s, self._policy.part_share * _part_s(usual, size_bytes))
        step_s = self._patience * pause_s
        wait_s = (
            self._late_s(usual, size_bytes) - sight.at_s
            if sight.first_byte_s is None
            else self._body_wait_s(usual, sight, before, rest_bytes, step_s)
        )
        if sight.lag_s > self._policy.lag_max_s:
            wait_s = step_s  # a check that is late itself cannot tell whether the request is late
        if wait_s > 0:
            return LookAgain(max(wait_s, 1e-3))
        if now_s < max(self._quiet_until_s, self._trial_until_s) or rest_bytes > self._account_bytes:
            return LookAgain(pause_s)
        self._account_bytes -= rest_bytes
        if self._gain < _TRUSTED_GAIN:
            self._trial_until_s = now_s + self._policy.quiet_s
        return Hedge()

    def note(self, size_bytes: int, first_byte_s: float, whole_s: float) -> None:
        """Record a request that was answered in full.

        Args:
            size_bytes: bytes received.
            first_byte_s: time from sending it to its first byte.
            whole_s: time from sending it to its last byte.
        """
        policy = self._policy
        self._account_bytes = min(self._account_bytes + self._gain * policy.share * size_bytes, self._room_bytes)
        self._rates.append(size_bytes / max(whole_s - first_byte_s, 1e-6))
        self._note_first(first_byte_s)

    def note_slow(self, waited_s: float) -> None:
        """Record a request that was given up without a byte after ``waited_s``.

        Without these, slow requests would seem ever rarer, and ever fewer would count as slow.
        """
        self._note_first(waited_s)

    def hedged(self, *, won: bool) -> None:
        """Record whether a hedge was complete before its first request, or after."""
        self._gain = min(2 * self._gain, 1.0) if won else max(self._gain / 2, _LEAST_GAIN)
        self._account_bytes = min(self._account_bytes, self._room_bytes)
        if won:
            self._trial_until_s = float("-inf")

    def throttled(self, now_s: float) -> None:
        """Record that the store asked to slow down."""
        self._quiet_until_s = now_s + self._policy.quiet_s

    @property
    def _patience(self) -> float:
        return 1.0 if self._gain >= _TRUSTED_GAIN else _TRIAL_PATIENCE

    @property
    def _room_bytes(self) -> float:
        return max(self._gain, _LEAST_ROOM) * self._policy.saved_bytes

    def _note_first(self, first_byte_s: float) -> None:
        self._first_s.append(first_byte_s)
        self._unsorted_count += 1
        if len(self._rates) < self._policy.samples_min:
            return
        if self._usual is None or self._unsorted_count >= min(_SORT_EVERY, len(self._first_s) // 4):
            self._unsorted_count = 0
            first_s, rates = sorted(self._first_s), sorted(self._rates)
            p95_s = first_s[int(0.95 * (len(first_s) - 1))]
            self._usual = _Usual(first_s[len(first_s) // 2], p95_s, rates[len(rates) // 2])

    def _late_s(self, usual: _Usual, size_bytes: int) -> float:
        policy = self._policy
        late_s = min(policy.late_factor * usual.first_p95_s, policy.median_factor * usual.first_p50_s)
        return self._patience * max(late_s, policy.part_share * _part_s(usual, size_bytes), policy.floor_s)

    def _body_wait_s(self, usual: _Usual, sight: Sight, before: Sight | None, rest_bytes: int, step_s: float) -> float:
        """Return when to check a body again; 0: the body has stalled or is slow."""
        assert sight.first_byte_s is not None
        if before is None or before.first_byte_s is None:
            before = Sight(sight.first_byte_s)
        for_s = sight.at_s - before.at_s
        if for_s < step_s / 2:  # too short to tell a pause from a stall
            return step_s
        rate = (sight.filled_bytes - before.filled_bytes) / for_s
        if rate * self._patience * self._policy.slow_factor >= usual.rate_p50:
            return step_s
        # near its end a body is not worth a hedge, because a second request takes time too
        return 0.0 if rest_bytes > 2 * rate * (usual.first_p50_s + rest_bytes / usual.rate_p50) else step_s


def _part_s(usual: _Usual, size_bytes: int) -> float:
    return usual.first_p50_s + size_bytes / usual.rate_p50


class HedgeStore:
    """Sends a second request for the rest of a range if the ``Hedger`` finds the first request slow.

    The request that is complete first wins. Both write the same bytes of the same version to the same place. The loser
    has stopped writing when ``read_into`` returns.

    Args:
        inner: sends each request once and reports its progress.
        hedger: judges the requests of this bucket.
        recorder: takes the measurements.
        now_s: the clock of ``ReadProgress.first_byte_s``.
    """

    def __init__(
        self, inner: ObjectStore, hedger: Hedger, recorder: Recorder, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._hedger = hedger
        self._recorder = recorder
        self._now_s = now_s

    def __repr__(self) -> str:
        return f"HedgeStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages."""
        async with closing_pages(self._inner.list(prefix, start_after)) as pages:
            async for page in pages:
                yield page

    async def head(self, key: str) -> ObjectRef:
        """Send a HEAD to the inner store."""
        return await self._inner.head(key)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Get the checksum from the inner store; see ``ObjectStore.checksum``."""
        return await self._inner.checksum(ref)

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store, with a second request if the first is slow.

        Raises the error of the first request: at once without a second request, else when the second has failed too.
        """
        after_s = self._hedger.look_after_s(span.size_bytes)
        if after_s is None:
            await self._inner.read_into(ref, span, sink, progress)
            return
        race = _Race(self._inner, self._hedger, ref, span, sink, progress or ReadProgress(), self._now_s)
        race.look_in(after_s)
        try:
            try:
                with race.first:
                    await self._inner.read_into(ref, span, sink, race.progress)
                    race.first_won = True
            except FeeddError as error:
                race.first_failed(error)
            except BaseException:
                race.second.cancel()
                raise
            finally:
                await race.end()
            race.settle()
        finally:
            race.failures.clear()  # their tracebacks refer to the race
            if race.hedged_bytes:
                self._recorder.count(SOURCE_HEDGES, outcome="won" if race.second_won else "lost")
                self._recorder.count(SOURCE_HEDGED_BYTES, race.hedged_bytes)

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()


class _Race:
    """One range being read: the first request in the caller's task, the second, if any, in its own task.

    Attributes:
        progress: progress of the first request.
        first: interrupts the first request.
        first_won: the first request is complete.
        second: the task of the second request.
        second_won: the second request was complete first.
        failures: errors of the two requests.
        hedged_bytes: size of the second request; 0: there is none.
    """

    def __init__(
        self,
        inner: ObjectStore,
        hedger: Hedger,
        ref: ObjectRef,
        span: ByteRange,
        sink: RangeSink,
        progress: ReadProgress,
        now_s: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._hedger = hedger
        self._ref = ref
        self._span = span
        self._sink = sink
        self.progress = progress
        self._rest = ReadProgress()
        self._rest_at = 0
        self._before: Sight | None = None
        self._loop = asyncio.get_running_loop()
        self._now_s, self._started_s = now_s, now_s()
        self._spoiled = False
        self.first, self.first_won = Interruptible(), False
        self.second, self.second_won = SideTask(), False
        self.failures: list[FeeddError | None] = [None, None]
        self.hedged_bytes = 0

    def first_failed(self, error: FeeddError) -> None:
        """Note the error of the first request, which is raised once no second request is running."""
        self.failures[0] = error
        self._spoiled_by(error, self.progress)

    async def end(self) -> None:
        """Look no more, and wait for the end of the second request."""
        self._timer.cancel()
        if self.second.started:
            if self.first_won or self._spoiled:
                self.second.cancel()
            await self.second.ended()

    def look_in(self, after_s: float) -> None:
        """Check the progress of the first request after that time."""
        self._look_at_s = self._now_s() + after_s
        self._timer = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        """Check the progress of the first request; called by the timer."""
        now_s = self._now_s()
        first_s = self.progress.first_byte_s
        sight = Sight(
            now_s - self._started_s,
            self.progress.filled_bytes,
            None if first_s is None else first_s - self._started_s,
            lag_s=now_s - self._look_at_s,
        )
        verdict = self._hedger.judge(self._span.size_bytes, sight, self._before, now_s)
        self._before = sight
        if isinstance(verdict, LookAgain):
            self.look_in(verdict.after_s)
        elif isinstance(verdict, Hedge):
            self._rest_at = sight.filled_bytes
            self.second.begin(self._run_second())

    async def _run_second(self) -> None:
        rest = ByteRange(self._span.start + self._rest_at, self._span.end)
        self.hedged_bytes, self._hedged_s = rest.size_bytes, self._now_s()
        try:
            part = self._sink.part(self._rest_at, self._sink.size_bytes)
            await self._inner.read_into(self._ref, rest, part, self._rest)
        except FeeddError as error:
            self.failures[1] = error
            if self._spoiled_by(error, self._rest):
                self.first.interrupt()
            return
        self.second_won = not self.first_won
        self.first.interrupt()

    def _spoiled_by(self, error: FeeddError, progress: ReadProgress) -> bool:
        """Return whether wrong bytes may have overwritten good bytes of the other request."""
        if isinstance(error, BadResponse) and progress.first_byte_s is not None:
            self._spoiled = True
        return self._spoiled

    def settle(self) -> None:
        """Report the outcome to the hedger and the caller."""
        now_s = self._now_s()
        if any(isinstance(failure, Throttled) for failure in self.failures):
            self._hedger.throttled(now_s)
        progress, rest = self.progress, self._rest
        if self._spoiled:
            progress.filled_bytes, self.second_won = 0, False
            self._raise(first=isinstance(self.failures[0], BadResponse))
        if self.second.started and (self.first_won or self.second_won):
            self._hedger.hedged(won=self.second_won)
        if self.first_won:
            progress.filled_bytes = self._span.size_bytes
            self._note(self._span.size_bytes, self._started_s, progress, now_s)
        elif self.second_won:
            if progress.first_byte_s is None:
                self._hedger.note_slow(now_s - self._started_s)
                progress.first_byte_s = rest.first_byte_s
            progress.filled_bytes, progress.answered_by = self._span.size_bytes, rest.answered_by
            self._note(self.hedged_bytes, self._hedged_s, rest, now_s)
        else:
            if self.second.started:
                progress.filled_bytes = max(progress.filled_bytes, self._rest_at + rest.filled_bytes)
            self._raise(first=True)

    def _note(self, size_bytes: int, asked_s: float, progress: ReadProgress, now_s: float) -> None:
        first_s = now_s if progress.first_byte_s is None else progress.first_byte_s
        self._hedger.note(size_bytes, first_s - asked_s, now_s - asked_s)

    def _raise(self, *, first: bool) -> NoReturn:
        failure = self.failures[0 if first else 1]
        assert failure is not None
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame, which would keep the target until garbage collection
