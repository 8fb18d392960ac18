"""What is remembered of shards that were made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.conversion import Conversion
from feedd.tables.facts import ConversionFact, ConversionLog
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

ROOT, FORM = "s3://b", Conversion("gunzip")


def test_as_many_facts_are_kept_as_were_used_last(tmp_path: Path) -> None:
    """In memory and in the file, however many were learned; a start knows those that were used last."""
    path = tmp_path / "made"
    facts = ConversionLog(path, rows_max=10)
    first = ObjectRef(ROOT, "first", 5, "e", FORM)
    for number in range(1_000):
        ref = first if not number else ObjectRef(ROOT, str(number), 5, "e", FORM)
        fact = ConversionFact(5, number, "tar")
        assert facts.note(ref, fact)
        facts.keep(ref, fact)
        assert facts.known(first) is not None
    assert repr(facts) == "ConversionLog(10 shards)"
    assert len(path.read_bytes().splitlines()) <= 20
    again = ConversionLog(path, rows_max=10)
    again.load()
    assert again.converted(ObjectRef(ROOT, "999", 5, "e", FORM)) == ObjectRef(ROOT, "999", 999, "e", FORM)
    assert again.known(first) == ConversionFact(5, 0, "tar")
    assert again.origin(ObjectRef(ROOT, "5", 5, "e", FORM)) is None


def test_a_line_that_was_cut_short_costs_no_other(tmp_path: Path) -> None:
    """What is kept behind half a line, which a full disk left, is read again."""
    path = tmp_path / "facts"
    facts = ConversionLog(path)
    first, second = (ObjectRef(ROOT, name, 5, "e", FORM) for name in ("first", "second"))
    facts.keep(first, ConversionFact(5, 1, "tar"))
    path.write_bytes(path.read_bytes() + b'["s3://memory/torn","e"')
    facts.keep(second, ConversionFact(5, 2, "tar"))
    again = ConversionLog(path)
    again.load()
    assert again.known(first) == ConversionFact(5, 1, "tar")
    assert again.known(second) == ConversionFact(5, 2, "tar")
