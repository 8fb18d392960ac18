"""Bounds concurrent requests, so that turns of the event loop stay short."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from feedd.fetch.turn_limit import TurnLimit

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S: Final = 0.01  # time between two measurements of the loop's turns


class TurnWatch:
    """Reports the length of the loop's turns to a ``TurnLimit`` while requests are in flight.

    It measures CPU time, because waiting for a core that decode workers use is not a long turn. Counting that wait
    lowered the limit and made epochs on two cores 5 to 18 % longer.

    Args:
        limit: gets the measurements.
        in_flight: returns the number of requests in flight; at zero, measuring pauses until the next ``begin``.
        looked: called after each measurement.
    """

    def __init__(self, limit: TurnLimit, in_flight: Callable[[], int], looked: Callable[[], object]) -> None:
        self._limit = limit
        self._in_flight = in_flight
        self._looked = looked
        self._watching = False

    def begin(self) -> None:
        """Start measuring. Idempotent; call it on the loop's thread."""
        if not self._watching:
            self._watching = True
            self._look_later(asyncio.get_running_loop())

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_LOOK_S, self._look, loop, time.thread_time())

    def _look(self, loop: asyncio.AbstractEventLoop, used_s: float) -> None:
        count = self._in_flight()
        self._limit.woke(max(0.0, time.thread_time() - used_s - _LOOK_S), count)
        if count:
            self._look_later(loop)
            self._looked()
        else:
            self._watching = False


class TurnGate:
    """A context manager that waits for a place; first come, first served.

    Args:
        places_max: upper bound of places.
        first: places at the beginning; doubled while turns are short, until the first long turn.
        least: lower bound of places.
    """

    def __init__(self, places_max: int, first: int = 8, least: int = 2) -> None:
        self._limit = TurnLimit(places_max, least=least, first=first)
        self._watch = TurnWatch(self._limit, lambda: self._count, self._admit)
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"TurnGate({self._count} in, {len(self._waiting)} waiting, {self._limit!r})"

    async def __aenter__(self) -> None:
        if self._waiting or self._count >= self._limit.limit:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():  # the place was granted together with the cancellation
                    self._leave()
                raise
        else:
            self._count += 1
        self._watch.begin()

    async def __aexit__(self, *exc: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._count -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._count < self._limit.limit:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled and has not run since
                self._count += 1
                first.set_result(None)
