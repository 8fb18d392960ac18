"""Measures how long a stream has sent nothing, so that a waiting client learns that the daemon still works for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HEARTBEAT_S_LEAST = 0.05  # a client cannot request more heartbeats than the loop can send
HEARTBEAT_S_MOST = 3600.0


class IdleStream:
    """Sets ``due`` after each period without a message. One timer per stream, not one per message.

    Attributes:
        due: a heartbeat should be sent if the client waits for a batch.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """Store ``wake``, which is called whenever ``due`` was set."""
        self.due = False
        self._wake = wake
        self._period_s = 0.0
        self._wrote_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, period_ms: int) -> None:
        """Start measuring; 0: the client wants no heartbeats."""
        if period_ms:
            self._period_s = min(max(period_ms / 1000, HEARTBEAT_S_LEAST), HEARTBEAT_S_MOST)
            self.broken()
            self._look()

    def broken(self) -> None:
        """Record that a message was written."""
        self.due = False
        if self._period_s:
            self._wrote_s = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._wrote_s >= self._period_s:
            self.due, self._wrote_s = True, loop.time()
            self._wake()
        self._timer = loop.call_at(self._wrote_s + self._period_s, self._look)
