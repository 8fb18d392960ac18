"""A daemon that was started for one process tree ends with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.daemon.signals import StopRequests
    from feedd.protocols import Clock

FIRST_HOLDER_S = 30.0  # whoever started us connects at once, or has died


class Holders:
    """Counts the processes that hold the daemon; asks to stop when the last one has gone."""

    def __init__(self, requests: StopRequests) -> None:
        self._requests = requests
        self._seen = False

    def on_change(self, count: int) -> None:
        """Take the number of holders; called at each change."""
        if count:
            self._seen = True
        elif self._seen:
            self._requests.ask("the last holder has gone", grace_s=0.0)

    async def expect_first(self, clock: Clock) -> None:
        """Ask to stop when nobody has come in time."""
        await clock.sleep_s(FIRST_HOLDER_S)
        if not self._seen:
            self._requests.ask("nobody came", grace_s=0.0)
