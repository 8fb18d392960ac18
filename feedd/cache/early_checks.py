"""Verifies entries in advance, in the order of the wish lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cache.entry_storage import Depth, Finding
from feedd.cache.policy.eviction_order import EntryState
from feedd.cache.policy.wishes import WishLists
from feedd.errors import FeeddError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.cache.check_schedule import Checks
    from feedd.cache.policy.cache_index import CacheIndex
    from feedd.cache.policy.eviction_order import Entry
    from feedd.values import ObjectRef


class EarlyChecks:
    """Verifies idle wished-for entries, one at a time; broken ones are handed to ``refetch`` at once."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        index: CacheIndex,
        checks: Checks,
        refetch: Callable[[Entry, Finding], Awaitable[None]],
    ) -> None:
        self._group = group
        self._index = index
        self._checks = checks
        self._refetch = refetch
        self._wishes = WishLists()
        self._task: asyncio.Task[None] | None = None

    def wish(self, owner: str, refs: Sequence[ObjectRef]) -> None:
        """Replace the owner's list of wishes."""
        self._wishes.replace(owner, [ref for ref in refs if self._due(ref) is not None])

    def pump(self) -> None:
        """Start verifying if an entry is due."""
        if self._wishes and self._task is None:
            self._task = self._group.create_task(self._run())

    def close(self) -> None:
        """Stop verifying and drop all wishes."""
        self._wishes.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while (entry := self._next()) is not None:
                await self._look(entry)
        finally:
            self._task = None

    async def _look(self, entry: Entry) -> None:
        generation = entry.generation
        try:
            (finding,) = await self._checks.look((entry,))
        except FeeddError:
            return  # the acquirer meets the same error and reports it
        if finding is not Finding.WHOLE and entry.generation == generation:
            await self._refetch(entry, finding)

    def _next(self) -> Entry | None:
        for owner in self._wishes.owners():
            while (ref := self._wishes.head(owner)) is not None:
                self._wishes.drop_head(owner)
                entry = self._due(ref)
                if entry is not None:
                    self._wishes.served(owner)
                    return entry
        return None

    def _due(self, ref: ObjectRef) -> Entry | None:
        """Return the object's entry if its bytes must be verified before use, else None."""
        entry = self._index.find(ref)
        if entry is None or entry.state is not EntryState.COMMITTED or entry.pins:
            return None
        return entry if self._checks.due(entry) in {Depth.HEADER, Depth.BLOCKS} else None
