"""Which fields default recipes leave out or change, by what a shard tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.notices import Amount, NoticeKind
from feedd.recipe import left_out as module
from feedd.recipe import recipe as recipes
from feedd.recipe.left_out import LeftOutFields, left_out
from feedd.recipe.recipe import default_fields, with_encodings
from feedd.shard_index import ShardIndex

if TYPE_CHECKING:
    import pytest


def told(fields: dict[str, str], unread: tuple[tuple[str, str], ...] = ()) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return what is left out of a shard with those fields, by how it stores them."""
    cells = np.zeros((len(fields), 1), np.int64)
    index = ShardIndex(tuple(fields), cells, cells, b"0", np.ones(1, np.int64), tuple(fields.values()), unread=unread)
    chosen = with_encodings(default_fields(index.fields, index.encodings), index)
    return {kind.value: (amount.count, amount.examples) for kind, amount in left_out(index, chosen).items()}


def test_nothing_is_left_out_of_plain_data() -> None:
    """Fields that are read as they are need no notice, nor do two spellings of one field, nor labels."""
    assert told({"jpg": "", "jpeg": "", "cls": "", "n": "int64", "x": "float32", "__folder__": ""}) == {}


def test_decimals_lose_their_point_whoever_names_them() -> None:
    """A column of decimals is told of by default and by name, and not where it is in no field."""
    cells = np.zeros((2, 1), np.int64)
    unread = (("Price", "decimal128(5, 2)"), ("chat", "map<string, int64>"))
    index = ShardIndex(("price", "n"), cells, cells, b"0", np.ones(1, np.int64), ("int64", "int64"), unread=unread)
    both, other = default_fields(index.fields, index.encodings), default_fields(("n",), ("int64",))
    assert [kind.value for kind in left_out(index, both)] == ["unread-columns", "unscaled-decimals"]
    assert [kind.value for kind in left_out(index, both, named=True)] == ["unscaled-decimals"]
    assert left_out(index, other, named=True) == {}


def test_each_field_has_one_reason() -> None:
    """Pickles, reserved names, narrowed numbers and columns that nobody can read are told apart."""
    found = told({"a": "pickle", "b": "float64", "__c": "", "d;e": "", "f": "int64"}, (("g", "struct<x: int64>"),))
    assert found == {
        "unread-columns": (1, ("g: struct<x: int64>",)),
        "pickled-columns": (1, ("a",)),
        "reserved-names": (2, ("__c", "d;e")),
        "narrowed-numbers": (1, ("b",)),
    }


def shard(fields: dict[str, str]) -> ShardIndex:
    """Return the index of a shard with those fields, by how it stores them."""
    cells = np.zeros((len(fields), 1), np.int64)
    return ShardIndex(tuple(fields), cells, cells, b"0", np.ones(1, np.int64), tuple(fields.values()))


def test_a_field_of_several_shards_counts_once() -> None:
    """Fields are counted by name; a shard of pickles only, which no open reads unnamed, adds nothing."""
    found = LeftOutFields()
    for fields in ({"__a": "", "x": "int64"}, {"__a": "", "__b": "", "x": "int64"}, {"p": "pickle"}):
        found.add(shard(fields))
    assert found.amounts == {NoticeKind.RESERVED_NAMES: Amount(2, 0, ("__a", "__b"))}


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fields shards have, only so many names are remembered."""
    monkeypatch.setattr(module, "_NAMES_MAX", 3)
    found = LeftOutFields()
    for number in range(4):
        found.add(shard({f"__{number}": "", f"__x{number}": ""}))
    assert found.amounts[NoticeKind.RESERVED_NAMES].count == 3


def test_fields_that_stay_bytes_for_lack_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound that nothing can decode comes as bytes, and that is said."""
    monkeypatch.setattr(recipes, "present", lambda *_: False)
    assert told({"wav": "", "cls": ""}) == {"undecoded-fields": (1, ("wav",))}
    monkeypatch.setattr(recipes, "present", lambda *_: True)
    assert told({"wav": "", "cls": ""}) == {}
