"""An event loop whose time passes only while it waits: seconds of sleep are over at once, in the same order."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class _Skipping(selectors.DefaultSelector):
    """Moves a clock on instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "expected something to wait for, got a loop that would hang"
        self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for each other only."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds, as far as they were waited for."""
        return self._skipping.now_s


def run_virtually(main: Coroutine[object, object, _T]) -> _T:
    """Run ``main`` in virtual time, and check that it leaves no task behind."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main)
        assert not asyncio.all_tasks(loop), "expected no task to be left"
        return result
    finally:
        loop.close()
