"""The space of one cache: the bytes taken, the quotas they count against, and the entries to evict. Pure."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.cache import entry_layout
from feedd.cache.policy.eviction_order import EvictionOrder
from feedd.cache.policy.quota import NO_GROUP, Quotas

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from feedd.cache.policy.eviction_order import Entry
    from feedd.values import ObjectRef


NOT_NEEDED = sys.float_info.max


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Not even an empty cache has the space; nothing was changed.

    Attributes:
        needed_bytes: bytes of all requested objects, or of those that count against ``quota``.
        limit_bytes: the limit they exceed.
        quota: URL prefix of the quota that is too small; empty: the cache itself is.
    """

    needed_bytes: int
    limit_bytes: int
    quota: str = NO_GROUP


class Capacity:
    """Bytes taken of a limit and of the quotas inside it, and the idle entries in the order of their eviction.

    Attributes:
        limit_bytes: upper limit of ``taken_bytes``.
        taken_bytes: disk bytes of all entries, reserved or committed.
        order: eviction order of idle entries; the index maintains it.
    """

    def __init__(self, limit_bytes: int, quotas: Quotas | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.order = EvictionOrder()
        self._quotas = quotas or Quotas()
        self._group_bytes: Counter[str] = Counter()  # of groups with a quota

    def group(self, ref: ObjectRef) -> str:
        """Return the quota that an object counts against; empty: none."""
        return self._quotas.group(ref)

    def fits(self, entry: Entry) -> bool:
        """Whether an entry fits without any eviction."""
        if entry.disk_bytes > self._free_bytes:
            return False
        limit_bytes = self._quotas.limit_bytes(entry.group) if entry.group != NO_GROUP else None
        return limit_bytes is None or self._group_bytes[entry.group] + entry.disk_bytes <= limit_bytes

    def take(self, entry: Entry) -> None:
        """Add an entry's bytes."""
        self.taken_bytes += entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] += entry.disk_bytes

    def give_back(self, entry: Entry) -> None:
        """Subtract an entry's bytes."""
        self.taken_bytes -= entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] -= entry.disk_bytes

    def lacking_bytes(self, sizes: Mapping[ObjectRef, int]) -> int:
        """Return how many bytes new objects lack: in the cache as a whole, or in the quota that lacks most."""
        return max(sum(sizes.values()) - self._free_bytes, *self._over_quota(sizes).values(), 0)

    def lacking_quota(self, sizes: Mapping[ObjectRef, int], keep: Collection[Entry] = ()) -> str:
        """Return a quota in which too little can be evicted now for objects not in the cache; empty: none."""
        for group, over_bytes in self._over_quota(sizes).items():
            inside = self.order.take(over_bytes, after=-math.inf, keep=keep, group=group)
            if inside is None:
                return group
            self._restore(inside)
        return NO_GROUP

    def too_large(self, refs: Iterable[ObjectRef]) -> TooLarge | None:
        """Return why even an empty cache cannot hold ``refs`` (no duplicates) together, or None."""
        sizes = {ref: entry_layout.disk_bytes(ref) for ref in refs}
        needed_bytes = sum(sizes.values())
        if needed_bytes > self.limit_bytes:
            return TooLarge(needed_bytes, self.limit_bytes)
        for group, group_bytes in self._quotas.sums(sizes.items()).items():
            limit_bytes = self._quotas.limit_bytes(group)
            if limit_bytes is not None and group_bytes > limit_bytes:
                return TooLarge(group_bytes, limit_bytes, group)
        return None

    def price(self, refs: Iterable[ObjectRef]) -> float:
        """Return the earliest next use among the entries that ``refs`` would evict; changes nothing.

        None of ``refs`` may be in the cache. inf: no eviction is needed. ``NOT_NEEDED``: only entries without a known
        use would be evicted. -inf: there is no space now.
        """
        victims = self.victims({ref: entry_layout.disk_bytes(ref) for ref in refs}, -math.inf)
        if victims is None:
            return -math.inf
        self._restore(victims)
        return min(*(entry.next_use for entry in victims), NOT_NEEDED) if victims else math.inf

    def victims(self, sizes: Mapping[ObjectRef, int], after: float, keep: Collection[Entry] = ()) -> list[Entry] | None:
        """Take entries to evict for new objects out of the order: first inside their quotas, then anywhere.

        Args:
            sizes: disk bytes of the objects, none of them in the cache.
            after: only entries whose next use is strictly later; -inf: any.
            keep: entries not to be taken.

        Returns:
            The entries to evict. None: they would not be enough, and the order is unchanged.
        """
        taken: list[Entry] = []
        for group, over_bytes in self._over_quota(sizes).items():
            inside = self.order.take(over_bytes, after=after, keep=keep, group=group)
            if inside is None:
                self._restore(taken)
                return None
            taken += inside
        freed_bytes = sum(entry.disk_bytes for entry in taken)
        wanted_bytes = sum(sizes.values()) - self._free_bytes - freed_bytes
        if wanted_bytes > 0:
            anywhere = self.order.take(wanted_bytes, after=after, keep=keep)
            if anywhere is None:
                self._restore(taken)
                return None
            taken += anywhere
        return taken

    @property
    def _free_bytes(self) -> int:
        return self.limit_bytes - self.taken_bytes

    def _over_quota(self, sizes: Mapping[ObjectRef, int]) -> dict[str, int]:
        """Return by how many bytes each exceeded quota would be exceeded."""
        found = {}
        for group, group_bytes in self._quotas.sums(sizes.items()).items():
            limit_bytes = self._quotas.limit_bytes(group)
            assert limit_bytes is not None, "only groups with a quota are summed"
            over_bytes = self._group_bytes[group] + group_bytes - limit_bytes
            if over_bytes > 0:
                found[group] = over_bytes
        return found

    def _restore(self, victims: Iterable[Entry]) -> None:
        for entry in victims:
            self.order.add(entry)
