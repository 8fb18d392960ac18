"""Which of two tiers an object goes to. Synchronous; looks at the tiers' books, touches nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from feedd.cache import entry_layout
from feedd.protocols import ShardCache

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from types import TracebackType

    from feedd.cache.cache_report import CacheEntry, CacheStats
    from feedd.values import ObjectRef


class Tier(ShardCache, Protocol):
    """A shard cache that can be one of several: its books can be looked into. ``async with`` opens it."""

    @property
    def limit_bytes(self) -> int:
        """Most disk bytes of its entries."""

    @property
    def stats(self) -> CacheStats:
        """A snapshot."""

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no order."""

    def holds(self, ref: ObjectRef) -> bool:
        """Whether an object is here whole."""

    def knows(self, ref: ObjectRef) -> bool:
        """Whether it has an entry for the object, or a fill of it under way."""

    def price(self, refs: Sequence[ObjectRef]) -> float:
        """Return the next use that would have to give way for ``refs``, none of them held; see ``Capacity.price``."""

    async def __aenter__(self) -> object:
        """Open."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What may be done with the disk now."""

    read: bool = True
    fill: bool = True


@dataclass(slots=True)
class Routes:
    """Where the objects of one demand are, or go.

    Attributes:
        disk: those of the lower tier.
        memory: those of the upper tier.
        bypassed_count: those in ``memory`` that would be on disk if it could be used.
    """

    disk: list[ObjectRef] = field(default_factory=list)
    memory: list[ObjectRef] = field(default_factory=list)
    bypassed_count: int = 0


class Placement:
    """Sends every object to one tier: where it is, where somebody has already sent it, else where it costs least.

    What costs least is what is needed last of all that would have to give way: so both tiers together evict as one
    cache does. Space nobody needs is taken in memory first.
    """

    def __init__(self, memory: Tier, disk: Tier, *, standby: bool) -> None:
        """Look at two tiers.

        Args:
            memory: the upper one.
            disk: the lower one.
            standby: memory is for when the disk cannot be used, and for nothing else.
        """
        self._memory = memory
        self._disk = disk
        self._standby = standby
        self._sent: dict[Hashable, Routes] = {}

    def route(self, who: Hashable, refs: Iterable[ObjectRef], use: DiskUse, *, together: bool) -> Routes:
        """Send ``refs`` somewhere, and remember that for ``who`` until it asks anew or is forgotten.

        Args:
            who: an owner of wishes, or one demand.
            refs: without duplicates.
            use: what may be done with the disk.
            together: they are needed at one time, so they have to fit into their tiers beside each other.
        """
        self._sent.pop(who, None)
        routes = Routes()
        loose: list[ObjectRef] = []
        for ref in refs:
            if self._memory.knows(ref):
                routes.memory.append(ref)
            elif use.read and self._disk.knows(ref):
                routes.disk.append(ref)
            elif not use.fill:
                routes.memory.append(ref)
                routes.bypassed_count += 1
            else:
                loose.append(ref)
        new_disk: list[ObjectRef] = []
        new_memory: list[ObjectRef] = []
        for ref in loose:
            home = self._home(ref)
            to_disk = home if home is not None else self._to_disk(ref, new_disk, new_memory)
            if together and self._standby is False:
                to_disk = self._fitting(ref, routes, to_disk=to_disk)
            (new_disk if to_disk else new_memory).append(ref)
            (routes.disk if to_disk else routes.memory).append(ref)
        self._sent[who] = routes
        return routes

    def past_disk(self, who: Hashable, kept: Sequence[ObjectRef]) -> Routes:
        """Send what was on its way to the disk to memory instead, but for ``kept``."""
        before = self._sent[who]
        moved = [ref for ref in before.disk if ref not in kept]
        routes = Routes(list(kept), before.memory + moved, before.bypassed_count + len(moved))
        self._sent[who] = routes
        return routes

    def sent(self, who: Hashable) -> Routes:
        """Return what is remembered."""
        return self._sent.get(who) or Routes()

    def forget(self, who: Hashable) -> None:
        """Forget it."""
        self._sent.pop(who, None)

    def _home(self, ref: ObjectRef) -> bool | None:
        """Whether somebody else sent it to the disk; None: nobody sent it anywhere."""
        for routes in self._sent.values():
            if ref in routes.disk:
                return True
            if ref in routes.memory and not self._standby:
                return False
        return None

    def _to_disk(self, ref: ObjectRef, new_disk: Sequence[ObjectRef], new_memory: Sequence[ObjectRef]) -> bool:
        if self._standby:
            return True
        memory, disk = self._memory.price([*new_memory, ref]), self._disk.price([*new_disk, ref])
        return memory < disk or (memory == disk < math.inf)  # where both pay alike, the larger one is the better LRU

    def _fitting(self, ref: ObjectRef, routes: Routes, *, to_disk: bool) -> bool:
        """Return the other tier where this one could never hold it beside what goes there already."""
        on_disk, in_memory = (sum(map(entry_layout.disk_bytes, [*refs, ref])) for refs in (routes.disk, routes.memory))
        fits_disk, fits_memory = on_disk <= self._disk.limit_bytes, in_memory <= self._memory.limit_bytes
        if fits_disk and fits_memory:
            return to_disk
        if fits_disk or fits_memory:
            return fits_disk
        return self._disk.limit_bytes >= self._memory.limit_bytes  # it will say what is too small
