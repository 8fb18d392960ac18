"""Which of two tiers an object goes to. Synchronous; reads the tiers' indexes and changes nothing in them."""

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
    """A shard cache that can be one of several tiers, with a readable index. ``async with`` opens it."""

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the disk bytes of its entries."""

    @property
    def stats(self) -> CacheStats:
        """A snapshot of its statistics."""

    def entries(self) -> list[CacheEntry]:
        """Return the whole entries, in no particular order."""

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the tier holds the whole object."""

    def knows(self, ref: ObjectRef) -> bool:
        """Whether the tier holds the object or is filling it."""

    def price(self, refs: Sequence[ObjectRef]) -> float:
        """Return the earliest next use among the entries that new ``refs`` would evict; see ``Capacity.price``."""

    def has_room(self, ref: ObjectRef) -> bool:
        """Whether a missing object could enter now without evicting an entry that is needed sooner."""

    async def __aenter__(self) -> object:
        """Open the tier."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the tier."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Whether the disk may be read and filled now."""

    read: bool = True
    fill: bool = True


@dataclass(slots=True)
class Routes:
    """The tier of each object of one request.

    Attributes:
        disk: objects in the lower tier.
        memory: objects in the upper tier.
        bypassed_count: objects in ``memory`` that would be on disk if the disk could be used.
    """

    disk: list[ObjectRef] = field(default_factory=list)
    memory: list[ObjectRef] = field(default_factory=list)
    bypassed_count: int = 0


class Placement:
    """Sends every object to one tier: where it is, where another request has sent it, else where it costs least.

    The cost is the earliest next use among the entries to evict: a later use costs less. So both tiers together
    evict like one cache. Free space is taken in memory first.
    """

    def __init__(self, memory: Tier, disk: Tier, *, standby: bool) -> None:
        """Decide between two tiers.

        Args:
            memory: the upper tier.
            disk: the lower tier.
            standby: use memory only while the disk cannot be used.
        """
        self._memory = memory
        self._disk = disk
        self._standby = standby
        self._sent: dict[Hashable, Routes] = {}

    def route(self, who: Hashable, refs: Iterable[ObjectRef], use: DiskUse, *, together: bool) -> Routes:
        """Choose a tier for each of ``refs``, and remember the choice until ``who`` asks again or is forgotten.

        Args:
            who: an owner of wishes, or one request.
            refs: the objects, without duplicates.
            use: what may be done with the disk.
            together: the objects are needed at one time, so each tier must be able to hold its objects together.
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
        """Send the objects that were going to the disk to memory instead, except ``kept``."""
        before = self._sent[who]
        moved = [ref for ref in before.disk if ref not in kept]
        routes = Routes(list(kept), before.memory + moved, before.bypassed_count + len(moved))
        self._sent[who] = routes
        return routes

    def sent(self, who: Hashable) -> Routes:
        """Return the remembered choice for ``who``."""
        return self._sent.get(who) or Routes()

    def forget(self, who: Hashable) -> None:
        """Forget the choice for ``who``."""
        self._sent.pop(who, None)

    def _home(self, ref: ObjectRef) -> bool | None:
        """Whether another request sent the object to the disk; None: no request sent it anywhere."""
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
        return memory < disk or (memory == disk < math.inf)  # if both cost the same, the larger cache is the better LRU

    def _fitting(self, ref: ObjectRef, routes: Routes, *, to_disk: bool) -> bool:
        """Return whether the object goes to disk; switches tiers if only the other tier can hold all objects."""
        on_disk, in_memory = (sum(map(entry_layout.disk_bytes, [*refs, ref])) for refs in (routes.disk, routes.memory))
        fits_disk, fits_memory = on_disk <= self._disk.limit_bytes, in_memory <= self._memory.limit_bytes
        if fits_disk and fits_memory:
            return to_disk
        if fits_disk or fits_memory:
            return fits_disk
        # The larger tier will raise the error that says what is too small.
        return self._disk.limit_bytes >= self._memory.limit_bytes
