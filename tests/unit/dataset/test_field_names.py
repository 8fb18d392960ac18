"""Names of fields that shards have: by source, with the first shard, up to a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.dataset import field_names
from feedd.dataset.field_names import FieldNames

if TYPE_CHECKING:
    import pytest


def test_names_are_told_with_the_first_shard_and_once() -> None:
    """What is known is left out, sources are apart, and what nobody can read has its type."""
    names = FieldNames()
    names.add(0, 3, ("a", "b"))
    names.add(0, 4, ("a", "b"))
    names.add(0, 5, ("a", "c"), (("Meta", "struct"),))
    names.add(1, 9, ("d",))
    assert list(names.beyond(0, {"a"})) == [("b", "", 3), ("c", "", 5), ("meta", "struct", 5)]
    assert list(names.beyond(1, ())) == [("d", "", 9)]
    assert len(names) == 5


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that all have other fields fill neither the names nor the sets of names that were seen."""
    monkeypatch.setattr(field_names, "_NAMES_MAX", 4)
    monkeypatch.setattr(field_names, "_SETS_MAX", 2)
    names = FieldNames()
    for shard in range(9):
        names.add(0, shard, (f"{shard}a", f"{shard}b"))
    assert len(names) == 4
    assert len(names._seen) == 2
