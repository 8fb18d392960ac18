"""Which row groups of a table are converted next, and which rows are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.flow.range_sinks import FileSink
from feedd.flow.sink_file import SinkFile
from feedd.tables import converter as growing_table
from feedd.tables.converter import GrowingTable
from feedd.tables.task import RowGroups, TablePlan
from feedd.values import ByteRange, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterator

REF = ObjectRef("s3://b", "a.parquet", 1 << 20, "v1")
GROUP_BYTES = 1000


def table(sink: FileSink, count: int = 8, *, hurried: bool = True) -> GrowingTable:
    """Return a table of row groups of 10 rows, numbered in pairs."""
    groups = tuple(
        RowGroups(2 * number + 2, 10 * number + 10, (ByteRange(number * GROUP_BYTES, (number + 1) * GROUP_BYTES),))
        for number in range(count)
    )
    return GrowingTable(REF, REF, sink, TablePlan(1 << 20, groups, None), hurried=hurried)


@pytest.fixture
def sink() -> Iterator[FileSink]:
    """A place for a table."""
    with open("/dev/null", "rb") as file:  # noqa: PTH123 - a descriptor is all that is needed
        yield FileSink(SinkFile(file.fileno()), 0, 1 << 20)


def parts(growing: GrowingTable) -> list[range]:
    """Return all parts that are left."""
    found = []
    while (part := growing.begin()) is not None:
        found.append(part)
    return found


def test_parts_grow_if_somebody_waits(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is small. If nobody waits, the only bound is what is fetched for a part."""
    assert parts(table(sink)) == [range(1), range(1, 3), range(3, 7), range(7, 8)]
    assert parts(table(sink, hurried=False)) == [range(8)]
    monkeypatch.setattr(growing_table, "_PART_BYTES_MAX", 3 * GROUP_BYTES)
    assert parts(table(sink, hurried=False)) == [range(3), range(3, 6), range(6, 8)]


def test_awaited_rows_come_first(sink: FileSink) -> None:
    """Those of the earliest ticket, then others; a part ends before row groups that have begun."""
    growing = table(sink)
    assert growing.begin() == range(1)
    growing.expedite(2, {65, 70})
    growing.expedite(1, {45})
    assert parts(growing) == [range(4, 6), range(6, 8), range(1, 4)]


def test_rows_between_the_first_and_the_last_are_there(sink: FileSink) -> None:
    """A reader of several row groups waits for all of them, and a reader of none for nothing."""
    growing = table(sink)
    assert growing.missing(set()) == set()
    growing.finish(range(1))
    growing.finish(range(2, 4))
    assert growing.missing({0, 9}) == set()
    assert growing.missing({0, 10}) == {0, 10}
    assert growing.missing({0, 39}) == {0, 39}
    assert growing.whole({20, 39})
    assert not growing.whole({20, 40})


def test_a_part_is_told_by_row_groups_and_ranges(sink: FileSink) -> None:
    """Its numbers of row groups continue those of the part before."""
    growing = table(sink)
    assert growing.groups_in(range(1, 3)) == range(2, 6)
    assert growing.ranges_in(range(1, 3)) == (ByteRange(1000, 2000), ByteRange(2000, 3000))
