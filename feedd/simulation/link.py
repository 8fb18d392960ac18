"""A network link that its transfers share equally."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class SharedLink:
    """Transfers at one time get equal rates: a share of the link, but at most the rate of a connection.

    All transfers progress alike. So a transfer ends when every transfer since its begin has got as many bytes as the
    transfer has, and one timer, for the next end, is enough.

    Args:
        link_bytes_s: rate of the link.
        connection_bytes_s: rate of one transfer at most.

    Attributes:
        moved_bytes: bytes of all transfers that have ended.
    """

    def __init__(self, link_bytes_s: float, connection_bytes_s: float) -> None:
        if link_bytes_s <= 0 or connection_bytes_s <= 0:
            raise ValueError(f"expected rates above 0, got {link_bytes_s} and {connection_bytes_s} bytes per second")
        self._link_bytes_s = link_bytes_s
        self._connection_bytes_s = connection_bytes_s
        self._progress_bytes = 0.0  # of a transfer that has run since the link was made
        self._at_s = 0.0  # when that was so
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap, by progress at the end
        self._numbers = itertools.count()
        self._running_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self.moved_bytes = 0

    def __repr__(self) -> str:
        return f"SharedLink({self._running_count} transfers)"

    async def transfer(self, size_bytes: int) -> None:
        """Return when so many bytes have passed."""
        self._advance()
        ended = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (self._progress_bytes + size_bytes, next(self._numbers), ended))
        self._running_count += 1
        self._set_timer()
        try:
            await ended
        except asyncio.CancelledError:
            if not ended.done() or ended.cancelled():
                self._advance()
                self._running_count -= 1
                self._set_timer()
            raise
        self.moved_bytes += size_bytes

    @property
    def _rate(self) -> float:
        return min(self._connection_bytes_s, self._link_bytes_s / self._running_count)

    def _advance(self) -> None:
        """Count what the running transfers got since the last change."""
        now_s = asyncio.get_running_loop().time()
        if self._running_count:
            self._progress_bytes += (now_s - self._at_s) * self._rate
        self._at_s = now_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].done():  # cancelled
            heapq.heappop(self._ends)
        if self._ends:
            left_s = max(self._ends[0][0] - self._progress_bytes, 0.0) / self._rate
            self._timer = asyncio.get_running_loop().call_later(left_s, self._end_next)

    def _end_next(self) -> None:
        self._timer = None
        self._advance()
        self._progress_bytes = max(self._progress_bytes, self._ends[0][0])  # rounding must not delay the end
        while self._ends and self._ends[0][0] <= self._progress_bytes:
            ended = heapq.heappop(self._ends)[2]
            if not ended.done():
                ended.set_result(None)
                self._running_count -= 1
        self._set_timer()
