"""A budget of bytes: first come, first served, without deadlock."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(eq=False, slots=True)
class _Waiter:
    size_bytes: int
    granted: asyncio.Future[None]


class ByteBudget:
    """Bounds the bytes held at one time.

    First in, first out: a small request never overtakes a large one, so no request starves. A request larger than the
    whole limit is granted once nothing else is held. So a budget that is too small is slow, but never stuck.

    One event loop; not thread-safe.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"expected a limit of 1 or more bytes, got {limit_bytes}")
        self._limit_bytes = limit_bytes
        self._reserved_bytes = 0
        self._waiters: deque[_Waiter] = deque()

    def __repr__(self) -> str:
        return f"ByteBudget({self._reserved_bytes}/{self._limit_bytes} bytes, {len(self._waiters)} waiting)"

    @property
    def limit_bytes(self) -> int:
        """Bytes that may be held together; only a single over-sized request may exceed them."""
        return self._limit_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes held now."""
        return self._reserved_bytes

    @property
    def waiting_count(self) -> int:
        """Requests not yet granted."""
        return len(self._waiters)

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncGenerator[None, None]:
        """Hold ``size_bytes`` for the body of the ``with``; wait for them first.

        A cancelled wait holds nothing, even if the grant and the cancellation came together.

        Raises:
            ValueError: the size is negative.
        """
        if size_bytes < 0:
            raise ValueError(f"expected 0 or more bytes, got {size_bytes}")
        await self._acquire(size_bytes)
        try:
            yield
        finally:
            self._release(size_bytes)

    def take(self, size_bytes: int) -> bool:
        """Hold ``size_bytes`` until ``give_back`` and return True; return False if they are not free now."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self._reserved_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that ``take`` gave."""
        self._release(size_bytes)

    async def _acquire(self, size_bytes: int) -> None:
        if not self._waiters and self._fits(size_bytes):
            self._reserved_bytes += size_bytes
            return
        waiter = _Waiter(size_bytes, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self._release(size_bytes)  # granted in the same turn of the loop: pass the bytes on
            else:
                with suppress(ValueError):  # a release in this very turn may have removed it from the queue
                    self._waiters.remove(waiter)
                self._grant()  # the next waiter may fit now
            raise

    def _release(self, size_bytes: int) -> None:
        self._reserved_bytes -= size_bytes
        assert self._reserved_bytes >= 0, "released more bytes than were held"
        self._grant()

    def _fits(self, size_bytes: int) -> bool:
        return self._reserved_bytes == 0 or self._reserved_bytes + size_bytes <= self._limit_bytes

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size_bytes):
            waiter = self._waiters.popleft()
            if waiter.granted.cancelled():
                continue  # its task has not run yet, and would never return the bytes
            self._reserved_bytes += waiter.size_bytes
            waiter.granted.set_result(None)
