"""A store that sends a second request if the first is slow."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

from feedd.errors import BadResponse, FeeddError, Throttled
from feedd.fetch.hedge_policy import Hedge, LookAgain, Sight
from feedd.fetch.pages import closing_pages
from feedd.flow.side_task import Interruptible, SideTask
from feedd.metrics import SOURCE_HEDGED_BYTES, SOURCE_HEDGES
from feedd.values import ByteRange, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from feedd.fetch.hedge_policy import Hedger
    from feedd.protocols import ObjectStore, Recorder
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectChecksum, ObjectRef


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
