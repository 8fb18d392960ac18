"""The decode workers of a simulated node."""

from __future__ import annotations

import asyncio


class SimulatedWorkers:
    """Workers that share every batch equally and take batches in the order of their arrival.

    The real pool cuts batches into chunks for all of its workers, so the last batch in line waits for all work before.

    Attributes:
        busy_s: CPU seconds of all work that was begun.
    """

    def __init__(self, worker_count: int) -> None:
        self._worker_count = worker_count
        self._free_at_s = 0.0
        self.busy_s = 0.0

    def __repr__(self) -> str:
        return f"SimulatedWorkers({self._worker_count})"

    async def work(self, cpu_s: float, chunk_count: int) -> None:
        """Return when so much work, in so many chunks, has been done."""
        if not cpu_s:
            return
        now_s = asyncio.get_running_loop().time()
        self.busy_s += cpu_s
        self._free_at_s = max(now_s, self._free_at_s) + cpu_s / self._worker_count
        alone_s = cpu_s / min(chunk_count, self._worker_count)
        await asyncio.sleep(max(self._free_at_s - now_s, alone_s))
