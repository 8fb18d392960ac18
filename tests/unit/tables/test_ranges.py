"""Ranges worth a request each, and names of columns as parameters."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.conversion import Conversion
from feedd.errors import BadShard, Internal
from feedd.shard_index import NO_LIMITS
from feedd.tables import registry
from feedd.tables.columns import ROWS_ONLY, TYPES, head_params, params_of, wanted_by
from feedd.tables.files import MappedObject
from feedd.tables.making import make_shard
from feedd.tables.ranges import WholeObject, coalesced, lacking
from feedd.tables.task import MakeTask
from feedd.values import ByteRange
from tests.fakes.making import HeldBytes

if TYPE_CHECKING:
    from feedd.protocols import PartialObject

RANGES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 60)).map(lambda one: ByteRange(one[0], one[0] + one[1])), max_size=8
)


def bytes_of(ranges: tuple[ByteRange, ...] | list[ByteRange]) -> set[int]:
    """Return every byte that lies in one of them."""
    return {byte for one in ranges for byte in range(one.start, one.end)}


@given(RANGES)
def test_few_requests_hold_all_that_is_wanted_and_little_more(wanted: list[ByteRange]) -> None:
    """In order, apart from each other; what lies between is at most a 32nd."""
    found = coalesced(wanted)
    own = bytes_of(wanted)
    assert own <= bytes_of(found)
    assert 32 * (len(bytes_of(found)) - len(own)) <= len(own)
    assert all(before.end < after.start for before, after in pairwise(found))


def test_the_smallest_gaps_are_bridged_first() -> None:
    """Up to what may be fetched besides."""
    wanted = [ByteRange(0, 320), ByteRange(325, 645), ByteRange(655, 975), ByteRange(1005, 1325)]
    assert coalesced(wanted) == (ByteRange(0, 975), ByteRange(1005, 1325))


def test_there_are_never_more_than_fit_a_message() -> None:
    """However scattered what is wanted is: more is fetched, then."""
    wanted = [ByteRange(at << 23, (at << 23) + 1000) for at in range(10_000)]
    found = coalesced(wanted)
    assert len(found) == 2048
    assert found[0].start == 0
    assert found[-1].end == wanted[-1].end
    assert all(any(one.start <= want.start and want.end <= one.end for one in found[:8]) for want in wanted[:8])


@given(RANGES, st.integers(0, 300), st.integers(0, 300))
def test_what_is_lacking_is_what_is_not_held(here: list[ByteRange], start: int, size: int) -> None:
    """Byte for byte."""
    span = ByteRange(start, start + size)
    held = HeldBytes(1000, coalesced([]) if not here else tuple(sorted(here)), memoryview(b""))
    assert bytes_of(lacking(held, span)) == bytes_of([span]) - bytes_of(here)


def test_the_same_columns_are_the_same_parameters() -> None:
    """In any order; each field's alternatives stay together."""
    assert params_of([["b"], ["jpg", "jpeg"], ["b"]]) == params_of([["jpeg", "jpg"], ["b"]]) == '[["b"],["jpeg","jpg"]]'
    assert wanted_by(params_of([["b"], ["a,"]])) == (("a,",), ("b",))
    assert wanted_by("") == ()
    with pytest.raises(Internal):
        wanted_by("{")


def test_the_first_ranges_are_those_that_the_reader_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon fetches what the reader wants first, in one round, and loads no reader for that."""
    params = ("", ROWS_ONLY, TYPES, head_params(""), '[["a"]]')
    asked = [
        (name, one, size) for name in registry._CONVERTERS for one in params for size in (1, 1 << 14, 3 << 20, 1 << 30)
    ]
    expected = [registry.get(name).wanted(MappedObject(-1, size), one) for name, one, size in asked]

    def refuse(name: str, *_: str) -> None:
        raise AssertionError(f"expected no import, got {name}")

    monkeypatch.setattr(registry, "loaded", refuse)
    monkeypatch.setattr(registry.importlib, "import_module", refuse)
    for (name, one, size), ranges in zip(asked, expected, strict=True):
        assert registry.first_ranges(Conversion(name, one), MappedObject(-1, size)) == ranges, (name, one, size)
    packed = registry.first_ranges(Conversion("gunzip+parquet"), MappedObject(-1, 9))
    assert packed == (ByteRange(0, 9),)


class Far(WholeObject):
    """A converter that asks for a byte behind the object."""

    name = "far"

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return a range that ends behind the object."""
        del params
        return (ByteRange(0, held.size_bytes + 1),)


FAR = Far()


def test_ranges_behind_the_object_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken object may tell positions that it does not have."""
    monkeypatch.setitem(registry._CONVERTERS, "far", registry.ConversionSpec("far", __name__, "FAR"))
    task = MakeTask(Conversion("far"), "s3://b/k", 4, (), -1, -1, 0, 1 << 20, 1 << 30)
    with pytest.raises(BadShard, match="expected ranges within 4 bytes, got bytes 0 to 5"):
        make_shard(task, NO_LIMITS)
