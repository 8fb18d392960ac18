"""SIGTERM and SIGINT: the first asks to drain, the second to stop at once."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """Reason and urgency of the daemon's stop. Pure except for its two events."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self.reason = ""
        self.grace_s: float | None = None

    def ask(self, reason: str, grace_s: float | None = None) -> None:
        """Ask to drain; the first reason stays.

        Args:
            reason: for the log.
            grace_s: time for open streams; None: as configured.
        """
        if not self.drain.is_set():
            self.reason = reason
            self.grace_s = grace_s
            self.drain.set()

    def on_signal(self, number: signal.Signals) -> None:
        """Handle a signal: the first asks to drain, the second to stop at once."""
        if self.drain.is_set():
            self.now.set()
        self.ask(number.name)


@contextmanager
def handled(requests: StopRequests) -> Iterator[None]:
    """Route the signals of the running loop to ``requests``."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, requests.on_signal, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
