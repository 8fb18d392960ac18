"""The space of one cache: what is taken, which quota it counts against, and who would have to give way. Pure."""

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
    """No space even in an empty cache; nothing was changed.

    Attributes:
        needed_bytes: of all objects asked for; of those of one quota where ``quota`` names it.
        limit_bytes: what there is at most.
        quota: URL prefix of the quota that is too small; empty: the cache is.
    """

    needed_bytes: int
    limit_bytes: int
    quota: str = NO_GROUP


class Capacity:
    """Bytes taken of a limit and of the quotas inside it, and the idle entries in the order of their eviction.

    Attributes:
        limit_bytes: upper limit of ``taken_bytes``.
        taken_bytes: disk bytes of all entries, reserved or committed.
        order: of idle entries; the index keeps it.
    """

    def __init__(self, limit_bytes: int, quotas: Quotas | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.order = EvictionOrder()
        self._quotas = quotas or Quotas()
        self._group_bytes: Counter[str] = Counter()  # of groups with a quota

    def group(self, ref: ObjectRef) -> str:
        """Return the quota an object counts against; empty: none."""
        return self._quotas.group(ref)

    def fits(self, entry: Entry) -> bool:
        """Whether an entry could be counted in with nobody giving way."""
        if entry.disk_bytes > self._free_bytes:
            return False
        limit_bytes = self._quotas.limit_bytes(entry.group) if entry.group != NO_GROUP else None
        return limit_bytes is None or self._group_bytes[entry.group] + entry.disk_bytes <= limit_bytes

    def take(self, entry: Entry) -> None:
        """Count an entry in."""
        self.taken_bytes += entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] += entry.disk_bytes

    def give_back(self, entry: Entry) -> None:
        """Count an entry out."""
        self.taken_bytes -= entry.disk_bytes
        if entry.group != NO_GROUP:
            self._group_bytes[entry.group] -= entry.disk_bytes

    def lacking_bytes(self, sizes: Mapping[ObjectRef, int]) -> int:
        """Return how much more than is free objects not here need: of the cache, or of the quota that lacks most."""
        return max(sum(sizes.values()) - self._free_bytes, *self._over_quota(sizes).values(), 0)

    def lacking_quota(self, sizes: Mapping[ObjectRef, int], keep: Collection[Entry] = ()) -> str:
        """Return the quota inside which too little can give way now for objects not here; empty: none does."""
        for group, over_bytes in self._over_quota(sizes).items():
            inside = self.order.take(over_bytes, after=-math.inf, keep=keep, group=group)
            if inside is None:
                return group
            self._restore(inside)
        return NO_GROUP

    def too_large(self, refs: Iterable[ObjectRef]) -> TooLarge | None:
        """Tell whether ``refs`` (no duplicates) cannot be held together even by an empty cache."""
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
        """Return the next use that would have to give way for ``refs`` (none of them here); changes nothing.

        inf: none, there is space. ``NOT_NEEDED``: of entries nobody is known to need. -inf: there is no space now.
        """
        victims = self.victims({ref: entry_layout.disk_bytes(ref) for ref in refs}, -math.inf)
        if victims is None:
            return -math.inf
        self._restore(victims)
        return min(*(entry.next_use for entry in victims), NOT_NEEDED) if victims else math.inf

    def victims(self, sizes: Mapping[ObjectRef, int], after: float, keep: Collection[Entry] = ()) -> list[Entry] | None:
        """Take out of the order what has to go for objects not here: first inside their quotas, then anywhere.

        Args:
            sizes: disk bytes of the objects.
            after: only entries whose next use is strictly later; -inf: any.
            keep: entries not to be taken.

        Returns:
            What to evict; None where that is not enough, and then the order is as it was.
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
        """Return by how many bytes each quota would be exceeded, where it would."""
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
