"""Measures this daemon's own delays while it waits for peers. Belongs to the loop of the connections."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from feedd.fetch.s3.connection import LazyTimer
from feedd.peers.own_delays import OwnDelays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_TICKS: Final = 4
"""Measurements in one timeout."""


def _nothing() -> None:
    return None


class DelayMeter:
    """Measures while something waits for a peer: how late a timer is, and how long the thread that serves peers takes.

    Args:
        timeout_s: see ``OwnDelays``.

    Attributes:
        delays: takes the delays.
        server_loop: loop of the thread that serves peers; None: there is none.
        on_tick: called several times per timeout while something waits.
    """

    def __init__(self, timeout_s: float) -> None:
        self.delays = OwnDelays(timeout_s)
        self.server_loop: asyncio.AbstractEventLoop | None = None
        self.on_tick: Callable[[], object] = _nothing
        self._loop = asyncio.get_running_loop()
        self._tick_s = timeout_s / _TICKS
        self._waiting_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._called_s: float | None = None  # when the other thread was called; None: it has answered

    def silence_s(self) -> float:
        """Return the longest silence of a peer that began to be silent while something waited for it."""
        now_s = self._loop.time()
        delay_s = 0.0 if self._timer is None else now_s - self._due_s
        if self._called_s is not None:
            delay_s = max(delay_s, now_s - self._called_s)
        return self.delays.limit_s(now_s, delay_s)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure during the body."""
        self._waiting_count += 1
        if self._timer is None:
            self._set(self._loop.time())
        try:
            yield
        finally:
            self._waiting_count -= 1
            if not self._waiting_count and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    @asynccontextmanager
    async def within(self, until_s: Callable[[float], float]) -> AsyncIterator[None]:
        """Bound the body, and measure meanwhile. The deadline is computed again before the body is given up.

        Args:
            until_s: returns the deadline, on the loop's clock, of a body that began at its argument.

        Raises:
            TimeoutError: the body took longer.
        """
        began_s = self._loop.time()

        def look() -> None:
            at_s = until_s(began_s)
            if self._loop.time() >= at_s:
                scope.reschedule(at_s)
            else:
                timer.set(at_s)

        timer = LazyTimer(look)
        with self.measuring():
            async with asyncio.timeout(None) as scope:
                timer.set(until_s(began_s))
                try:
                    yield
                finally:
                    timer.stop()

    def _tick(self) -> None:
        now_s = self._loop.time()
        self.delays.noted(now_s - self._due_s, now_s)
        self._set(now_s)
        self.on_tick()
        if self._called_s is None and self.server_loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.server_loop.call_soon_threadsafe(self._loop.call_soon_threadsafe, self._answered)
                self._called_s = now_s

    def _set(self, now_s: float) -> None:
        self._due_s = now_s + self._tick_s
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def _answered(self) -> None:
        assert self._called_s is not None
        now_s, asked_s, self._called_s = self._loop.time(), self._called_s, None
        self.delays.noted(now_s - asked_s, now_s)
