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
    quotas: frozenset[str]  # the quotas that its refs count against
    lacks: str  # the quota that is full, or NO_GROUP if the cache itself is full


class SpaceQueue(Generic[G]):
    """Waiters for a grant of type ``G``, made synchronously on their behalf when space becomes free.

    A waiter for space inside a quota blocks later waiters of the same quota only. A waiter for space of the cache
    blocks all later waiters.
    """

    def __init__(self, quota_of: Callable[[ObjectRef], str]) -> None:
        self._quota_of = quota_of
        self._waiters: dict[asyncio.Future[G], _Waiter] = {}

    def __len__(self) -> int:
        """Number of waiters."""
        return len(self._waiters)

    @property
    def holds_all_up(self) -> bool:
        """Whether a waiter needs space of the cache itself, not of a quota."""
        return any(waiter.lacks == NO_GROUP for waiter in self._waiters.values())

    def blocking(self, refs: Sequence[ObjectRef]) -> FullNow | None:
        """Return the shortage that blocks ``refs`` because an earlier waiter needs the same space, or None."""
        if not self._waiters:
            return None
        return self._blocking(self._quotas(refs), (waiter.lacks for waiter in self._waiters.values()))

    async def wait(self, refs: Sequence[ObjectRef], full: FullNow, undo: Callable[[G], None]) -> G:
        """Wait until the request can be granted.

        Args:
            refs: the requested objects.
            full: why they cannot be granted now.
            undo: takes back a grant that came together with this task's cancellation.

        Raises:
            The error that was passed to ``fail``.
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
        """Grant in order, skipping waiters that an earlier ungranted waiter blocks."""
        lacking: list[str] = []
        for granted, waiter in tuple(self._waiters.items()):
            if not granted.done():
                got = self._blocking(waiter.quotas, lacking) or grant(waiter.refs)
                if isinstance(got, FullNow):
                    waiter.lacks = got.quota
                    lacking.append(got.quota)
                    continue
                granted.set_result(got)
            self._waiters.pop(granted, None)

    def fail(self, error: Exception) -> None:
        """Fail all waiters with ``error``."""
        for granted in tuple(self._waiters):
            if not granted.done():
                granted.set_exception(error)
        self._waiters.clear()

    def _quotas(self, refs: Sequence[ObjectRef]) -> frozenset[str]:
        return frozenset(map(self._quota_of, refs))

    @staticmethod
    def _blocking(quotas: frozenset[str], lacking: Iterable[str]) -> FullNow | None:
        return next((FullNow(0, lacks) for lacks in lacking if lacks == NO_GROUP or lacks in quotas), None)
