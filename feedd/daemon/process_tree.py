"""Stops a daemon that was started for one process tree when the tree ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.daemon.signals import StopRequests
    from feedd.protocols import Clock

FIRST_HOLDER_S = 30.0  # the starting process connects at once, or has died


class Holders:
    """Counts the processes that hold the daemon, and asks to stop when the last one has gone."""

    def __init__(self, requests: StopRequests) -> None:
        self._requests = requests
        self._seen = False

    def on_change(self, count: int) -> None:
        """Handle a new number of holders; called at each change."""
        if count:
            self._seen = True
        elif self._seen:
            self._requests.ask("the last holder has gone", grace_s=0.0)

    async def expect_first(self, clock: Clock) -> None:
        """Ask to stop if no process connects in time."""
        await clock.sleep_s(FIRST_HOLDER_S)
        if not self._seen:
            self._requests.ask("no process connected in time", grace_s=0.0)
