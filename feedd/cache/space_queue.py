"""Acquirers waiting for space, first come first served; they hold nothing meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from feedd.cache.policy.cache_index import FullNow
from feedd.cache.policy.quota import NO_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.values import ObjectRef

G = TypeVar("G")


@dataclass(slots=True)
class _Waiter:
    refs: Sequence[ObjectRef]
    quotas: frozenset[str]  # those its refs count against
    lacks: str  # the quota that is full, or NO_GROUP: the cache is


class SpaceQueue(Generic[G]):
    """Waiters for a grant of type ``G``, made synchronously on their behalf when space comes free.

    Nobody is overtaken but by those who cannot take what he waits for: a waiter for space inside a quota holds up
    those of the same quota only.
    """

    def __init__(self, quota_of: Callable[[ObjectRef], str]) -> None:
        self._quota_of = quota_of
        self._waiters: dict[asyncio.Future[G], _Waiter] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    @property
    def holds_all_up(self) -> bool:
        """Whether somebody waits for space of the cache, not of a quota."""
        return any(waiter.lacks == NO_GROUP for waiter in self._waiters.values())

    def ahead(self, refs: Sequence[ObjectRef]) -> FullNow | None:
        """Return what somebody waits for whom a demand for ``refs`` must not overtake; None: there is nobody."""
        if not self._waiters:
            return None
        return self._ahead(self._quotas(refs), (waiter.lacks for waiter in self._waiters.values()))

    async def wait(self, refs: Sequence[ObjectRef], full: FullNow, undo: Callable[[G], None]) -> G:
        """Wait for a turn that succeeds.

        Args:
            refs: what is wanted.
            full: why it cannot be had now.
            undo: takes a grant back that came together with our cancellation.

        Raises:
            What ``fail`` was given.
        """
        granted: asyncio.Future[G] = asyncio.get_running_loop().create_future()
        self._waiters[granted] = _Waiter(refs, self._quotas(refs), full.quota)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                undo(granted.result())
            raise
        finally:
            self._waiters.pop(granted, None)

    def serve(self, grant: Callable[[Sequence[ObjectRef]], G | FullNow]) -> None:
        """Grant in order, to all who do not have to stand behind one whose turn has not come."""
        lacking: list[str] = []
        for granted, waiter in tuple(self._waiters.items()):
            if not granted.done():
                got = self._ahead(waiter.quotas, lacking) or grant(waiter.refs)
                if isinstance(got, FullNow):
                    waiter.lacks = got.quota
                    lacking.append(got.quota)
                    continue
                granted.set_result(got)
            self._waiters.pop(granted, None)

    def fail(self, error: Exception) -> None:
        """Send everybody away."""
        for granted in tuple(self._waiters):
            if not granted.done():
                granted.set_exception(error)
        self._waiters.clear()

    def _quotas(self, refs: Sequence[ObjectRef]) -> frozenset[str]:
        return frozenset(map(self._quota_of, refs))

    @staticmethod
    def _ahead(quotas: frozenset[str], lacking: Iterable[str]) -> FullNow | None:
        return next((FullNow(0, lacks) for lacks in lacking if lacks == NO_GROUP or lacks in quotas), None)
