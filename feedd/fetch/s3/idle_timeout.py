"""Detects that nothing is received any more."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.fetch.s3.lazy_timer import LazyTimer

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an exchange may be silent.

    Attributes:
        longest_s: returns the longest time without anything new; called at each check.
        elsewhere: returns what has come elsewhere from the same server; compared for equality only.
    """

    longest_s: Callable[[], float]
    elsewhere: Callable[[], object] = _nothing


class IdleTimeout:
    """Watches an exchange; checks twice per allowed silence.

    Args:
        patience: how long nothing new may come.
        came: returns how much has come; compared for equality only.
        fell: called when that did not change for so long; watching has stopped then.
    """

    def __init__(self, patience: Patience, came: Callable[[], object], fell: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._came = came
        self._fell = fell
        self._timer = LazyTimer(self._look)
        self._seen: object = None
        self._since_s = 0.0

    def begin(self) -> None:
        """Start watching."""
        self._seen, self._since_s = self._news(), self._loop.time()
        self._timer.set(self._since_s + self._patience.longest_s() / 2)

    def end(self) -> None:
        """Pause watching."""
        self._timer.set(math.inf)

    def stop(self) -> None:
        """Stop watching and leave no timer behind."""
        self._timer.stop()

    def _look(self) -> None:
        now_s, seen = self._loop.time(), self._news()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        longest_s = self._patience.longest_s()
        ends_s = self._since_s + longest_s
        if now_s >= ends_s:
            self._fell()
        else:
            self._timer.set(min(now_s + longest_s / 2, ends_s))

    def _news(self) -> object:
        return self._came(), self._patience.elsewhere()
