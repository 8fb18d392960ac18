"""An event loop in virtual time: a wait ends at once, and the clock moves on by its length."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class _ClockSelector(selectors.SelectSelector):
    """Moves a clock instead of waiting; looks at no file."""

    def __init__(self, start_s: float) -> None:
        super().__init__()
        self.now_s = start_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("expected a timer or a ready task in virtual time, got a loop that waits forever")
        if timeout > 0:
            self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for each other only: no sockets, threads or signals."""

    def __init__(self, start_s: float = 0.0) -> None:
        """Make a loop whose clock begins at ``start_s``."""
        self._clock = _ClockSelector(start_s)
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds of the clock."""
        return self._clock.now_s


class VirtualClock:
    """The ``Clock`` of the running event loop."""

    def monotonic_s(self) -> float:
        """Seconds of the loop."""
        return asyncio.get_running_loop().time()

    async def sleep_s(self, duration_s: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(duration_s)


def run_in_virtual_time(main: Coroutine[object, object, _T]) -> _T:
    """Run a coroutine to its end, and return its result.

    Raises:
        RuntimeError: the coroutine waits for an event that never comes.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
