"""Acquirers waiting for space, first come first served; they hold nothing meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.values import ObjectRef

G = TypeVar("G")


class SpaceQueue(Generic[G]):
    """Waiters for a grant of type ``G``, made synchronously on their behalf when space comes free."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[G], Sequence[ObjectRef]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    async def wait(self, refs: Sequence[ObjectRef], undo: Callable[[G], None]) -> G:
        """Wait for a turn that succeeds; ``undo`` takes a grant back that came together with our cancellation.

        Raises:
            What ``fail`` was given.
        """
        granted: asyncio.Future[G] = asyncio.get_running_loop().create_future()
        self._waiters[granted] = refs
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                undo(granted.result())
            raise
        finally:
            self._waiters.pop(granted, None)

    def serve(self, grant: Callable[[Sequence[ObjectRef]], G | None]) -> None:
        """Grant in order for as long as that succeeds."""
        for granted, refs in tuple(self._waiters.items()):
            if not granted.done():
                got = grant(refs)
                if got is None:
                    return
                granted.set_result(got)
            self._waiters.pop(granted, None)

    def fail(self, error: Exception) -> None:
        """Send everybody away."""
        for granted in tuple(self._waiters):
            if not granted.done():
                granted.set_exception(error)
        self._waiters.clear()
