"""The system's clock behind the ``Clock`` seam; tests use their own."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Monotonic time and sleep of the operating system."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

    async def sleep_s(self, duration_s: float) -> None:
        """Suspend the calling task for ``duration_s`` seconds."""
        await asyncio.sleep(duration_s)
