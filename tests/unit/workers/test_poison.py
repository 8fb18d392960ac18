from __future__ import annotations

from dataclasses import replace

import numpy as np

from feedd.conversion import Conversion
from feedd.recipe.recipe import parse_field
from feedd.values import ObjectRef, ShardFile
from feedd.workers import calls as poison
from feedd.workers.calls import REMEMBERED_S, Poison
from feedd.workers.work import FieldWork

ROWS = 6


def field(name: str, at: int = 0, recipe: str = "bytes") -> FieldWork:
    """Return a field of rows that lie 100 bytes apart, even ones in the first file and odd ones in the second."""
    start = at + np.arange(ROWS, dtype=np.int64) * 100
    return FieldWork(parse_field(name, recipe), np.arange(ROWS, dtype=np.int32) % 2, start, start * 0 + 10, start)


def files(etag: str = "e") -> list[ShardFile]:
    """Return two shards."""
    return [ShardFile(ObjectRef("s3://b", f"{n}.tar", 1000, etag), f"/c/{n}", 0) for n in range(2)]


class Time:
    """A clock that stands until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return seconds."""
        return self.now_s


def test_a_row_is_known_where_the_same_is_asked_of_it() -> None:
    """Same object, version, place and fields: anything else is another question, and may well be answered."""
    known = Poison()
    a, b = field("a"), field("b", 50)
    known.add(files(), (a, b), 3, "why")
    assert known.rows(files(), (a, b)) == {3: "why"}
    assert known.rows(files("other"), (a, b)) == {}
    assert known.rows(files()[::-1], (a, b)) == {}
    assert known.rows(files(), (a,)) == {}
    assert known.rows(files(), (field("a", recipe="str"), b)) == {}
    assert known.rows(files(), (field("a", 7), b)) == {}


def test_rows_that_share_a_field_are_not_condemned_together() -> None:
    """Samples of one label have the same field first: each is told from the others by all its fields."""
    known = Poison()
    label, image = field("label"), field("image", 50)
    label.start[:] = 7
    known.add(files(), (label, image), 3, "why")
    assert known.rows(files(), (label, image)) == {3: "why"}


def test_columns_of_one_object_are_not_taken_for_each_other() -> None:
    """Two shards that are made of one object begin their rows at the same places."""
    known = Poison()
    narrow = [replace(file, ref=replace(file.ref, conversion=Conversion("parquet", '[["a"]]'))) for file in files()]
    known.add(narrow, (field("a"),), 3, "why")
    assert known.rows(narrow, (field("a"),)) == {3: "why"}
    assert known.rows(files(), (field("a"),)) == {}


def test_a_row_that_killed_while_one_field_was_measured_is_known_to_all_who_decode_that() -> None:
    """What measuring found out holds for every batch with that field, whatever else is in it."""
    known = Poison()
    a, b = field("a"), field("b", 50)
    known.add(files(), (b,), 4, "why")
    assert known.rows(files(), (a, b)) == {4: "why"}
    assert known.rows(files(), (b,)) == {4: "why"}
    assert known.rows(files(), (a,)) == {}


def test_an_hour_later_it_may_try_again() -> None:
    """A machine short of memory kills workers, too: no row is condemned for good."""
    time = Time()
    known = Poison(time)
    known.add(files(), (field("a"),), 1, "why")
    time.now_s = REMEMBERED_S - 1
    assert known.rows(files(), (field("a"),)) == {1: "why"}
    time.now_s = REMEMBERED_S
    assert known.rows(files(), (field("a"),)) == {}


def test_what_is_remembered_is_bounded() -> None:
    """However many rows kill, memory does not grow with them."""
    known = Poison()
    for n in range(poison._ROWS_MAX + 10):
        known.add(files(), (field("a", n),), 0, "why")
    assert sum(len(spots) for spots in known._known.values()) <= poison._ROWS_MAX
    assert known.rows(files(), (field("a", poison._ROWS_MAX + 9),)) == {0: "why"}
