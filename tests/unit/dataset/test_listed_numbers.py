"""Objects found in a listing by their version, without a Python object per shard."""

from __future__ import annotations

from dataclasses import replace

from feedd.conversion import Conversion
from feedd.dataset.ref_columns import ShardNumbers
from feedd.values import ObjectRef

REFS = tuple(ObjectRef("s3://b", f"train/{number:03d}.tar", 100 + number, f"e{number}") for number in range(300))


def test_every_object_is_found_where_it_is_listed() -> None:
    """In whatever order objects are asked for, and none for none."""
    numbers = ShardNumbers(REFS)
    assert numbers.find(REFS[::-1], REFS).tolist() == list(range(300))[::-1]
    assert numbers.find((), REFS).tolist() == []
    assert ShardNumbers(()).find(REFS[:2], ()).tolist() == [-1, -1]


def test_another_version_name_or_store_is_not_the_object() -> None:
    """Key, ETag and store decide; the size does not, because a converted shard has its own."""
    ref = REFS[7]
    others = [replace(ref, etag="other"), replace(ref, key="train/7.tar"), replace(ref, root="s3://c")]
    assert ShardNumbers(REFS).find([*others, replace(ref, size_bytes=1)], REFS).tolist() == [-1, -1, -1, 7]


def test_conversions_of_one_object_are_told_apart() -> None:
    """One object that is listed in two conversions is two shards; a third conversion is none; the first twin counts."""
    one, two, three = (replace(REFS[0], conversion=Conversion("parquet", params)) for params in ("a", "b", "c"))
    refs = (REFS[1], one, two, two)
    numbers = ShardNumbers((REFS[1], REFS[0], REFS[0], REFS[0]))
    assert numbers.find([two, one, three, REFS[0], REFS[1]], refs).tolist() == [2, 1, -1, -1, 0]
