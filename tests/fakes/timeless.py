"""A clock whose sleeps take no time."""

from __future__ import annotations

import asyncio


class TimelessClock:
    """Time passes only by sleeping, and sleeping returns at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep_s(self, duration_s: float) -> None:
        self.sleeps_s.append(duration_s)
        self.now_s += duration_s
        await asyncio.sleep(0)
