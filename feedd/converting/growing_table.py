"""A table that is converted into its cache entry some row groups at a time, and read meanwhile."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from feedd.convert.whole_table import TablePlan
    from feedd.flow.range_sinks import FileSink
    from feedd.values import ByteRange, ObjectRef

_PART_BYTES_MAX: Final = 16 << 20  # fetched for one part: enough for the rate, and little of the memory


class GrowingTable:
    """A table being converted: an ``InflightPack`` whose objects are rows. Used on one event loop; bookkeeping only.

    A reader awaits the first and the last row that it needs, and gets all rows between them.

    Args:
        ref: the object, as listed.
        shard: the table.
        sink: the table's place in a file.
        plan: the row groups.
        hurried: whether a reader waits now. Then the first part is one item of ``plan.groups``, and each later part is
            twice as large, because small parts take more CPU time.

    Attributes:
        ref: as given.
        shard: as given.
        file_sink: as given.
    """

    def __init__(self, ref: ObjectRef, shard: ObjectRef, sink: FileSink, plan: TablePlan, *, hurried: bool) -> None:
        self.ref, self.shard, self.file_sink = ref, shard, sink
        self._groups = plan.groups
        self._row_ends = [one.row_end for one in plan.groups]
        self._left = set(range(len(plan.groups)))  # not begun
        self._undone = set(self._left)
        self._needed: dict[int, range] = {}  # in ``plan.groups``, by ticket
        self._count_max = 1 if hurried else len(plan.groups)

    def missing(self, objects: set[int]) -> set[int]:
        """Return ``objects`` unless all rows from the first to the last one are there."""
        return set() if self._undone.isdisjoint(self._items_with(objects)) else objects

    def whole(self, objects: set[int]) -> bool:
        """Whether all rows from the first to the last one are there."""
        return not self.missing(objects)

    def expedite(self, ticket: int, objects: set[int]) -> None:
        """Convert these rows before others."""
        self._needed[ticket] = self._items_with(objects)

    def begin(self) -> range | None:
        """Return the next part to convert, as indices in ``plan.groups``; None: all have begun."""
        if not self._left:
            return None
        needed = (index for _, indices in sorted(self._needed.items()) for index in indices if index in self._left)
        start = end = next(needed, min(self._left))
        size_bytes = 0
        while end in self._left and end - start < self._count_max:
            size_bytes += sum(span.size_bytes for span in self._groups[end].ranges)
            if end > start and size_bytes > _PART_BYTES_MAX:
                break
            end += 1
        self._count_max *= 2
        part = range(start, end)
        self._left.difference_update(part)
        return part

    def finish(self, part: range) -> None:
        """Record that a part is there."""
        self._undone.difference_update(part)

    def groups_in(self, part: range) -> range:
        """Return the numbers of the row groups of a part."""
        start = self._groups[part.start - 1].group_end if part.start else 0
        return range(start, self._groups[part.stop - 1].group_end)

    def ranges_in(self, part: range) -> tuple[ByteRange, ...]:
        """Return the ranges of the object that a part is converted from."""
        return tuple(span for one in self._groups[part.start : part.stop] for span in one.ranges)

    def _items_with(self, rows: set[int]) -> range:
        if not rows:
            return range(0)
        first, last = (bisect.bisect_right(self._row_ends, row) for row in (min(rows), max(rows)))
        return range(first, last + 1)
