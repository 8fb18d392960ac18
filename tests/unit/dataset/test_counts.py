"""The index object: what it says, and what is not believed of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.index_file import Row, folder_of, is_index, known, parse, render
from feedd.values import ObjectRef

ROWS = st.lists(
    st.builds(Row, st.text(), st.integers(0, 2**62), st.text(), st.integers(0, 2**39)),
    max_size=20,
    unique_by=lambda r: r.key,
)


@given(rows=ROWS)
def test_comes_back_as_it_was(rows: list[Row]) -> None:
    """What is written is read again, in order of keys."""
    assert parse(render(rows)) == sorted(rows, key=lambda row: row.key)


@given(data=st.binary(max_size=200))
def test_rubbish_is_a_value_error(data: bytes) -> None:
    """Nothing but an index is read as one."""
    with pytest.raises(ValueError, match="expected"):
        parse(data)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"key": ["a"]},
        {"sample_count": [-1, 2]},
        {"sample_count": [1 << 50, 2]},
        {"sample_count": [1.5, 2]},
        {"etag": None},
    ],
)
def test_damage_is_a_value_error(change: dict[str, object]) -> None:
    """Another version, uneven columns and numbers that are no counts are refused."""
    good = json.loads(render([Row("a", 1, "x", 3), Row("b", 2, "y", 4)]))
    assert len(parse(json.dumps(good | {"comment": "fine"}).encode())) == 2
    with pytest.raises(ValueError, match="expected"):
        parse(json.dumps(good | change).encode())


def test_depth_is_a_value_error() -> None:
    """A file nested beyond what can be read is refused as any other."""
    with pytest.raises(ValueError, match="expected an index, got one nested"):
        parse(b'{"x": ' + b"[" * 100_000)


def test_only_the_very_object_counts() -> None:
    """A shard that was replaced, is of another size or lies elsewhere is not known."""
    refs = [ObjectRef("s3://b", f"train/{key}", 10, "x") for key in ("a", "b", "c", "sub/a", "d")]
    rows = [
        Row("a", 10, "x", 3),
        Row("b", 11, "x", 3),
        Row("c", 10, "y", 3),
        Row("sub/a", 10, "x", 7),
        Row("e", 1, "x", 1),
    ]
    assert known(refs, {("s3://b", "train/"): rows}) == {0: 3, 3: 7}
    assert known(refs, {("s3://other", "train/"): rows, ("s3://b", ""): rows}) == {}
    assert known(refs, {("s3://b", "train/sub/"): [Row("a", 10, "x", 9)]}) == {3: 9}


def test_which_objects_are_indexes() -> None:
    """By name, in whatever folder."""
    assert is_index("_feedd_index.json")
    assert is_index("train/_feedd_index.json")
    assert is_index("train/_feedd_index.json.17.new")
    assert not is_index("train/my_feedd_index.json")
    assert not is_index("train/_feedd_index.json.tar")
    assert (folder_of("train/a/b.tar"), folder_of("b.tar"), folder_of("train/")) == ("train/a/", "", "train/")
