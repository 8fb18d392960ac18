"""Labels of plain objects: by folder, and from tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.decode.labels import FOLDER, fits, label_source, number_at, number_of, table_of
from feedd.decode.recipe import default_fields, parse_field
from feedd.errors import BadRecipe
from feedd.plan.objects.labels import folder_labels, parse_table, table_labels
from tests.unit.plan.test_objects_grouping import grouped, refs_of

if TYPE_CHECKING:
    from feedd.plan.objects.packs import Packs


def packs_of(*keys: str) -> list[Packs]:
    """Return the packs of a listing of these keys."""
    packs = grouped(refs_of(dict.fromkeys(keys, 10))).packs
    assert packs is not None
    return [packs]


def test_folders_are_numbered_in_order() -> None:
    """As ImageFolder has it: by name of the folder, not by where keys sort it; deeper ones belong to the first."""
    keys = ["a-b/1.jpg", "a/1.jpg", "a/deep/1.jpg", "c/1.jpg", "c/1.json"]
    (labels,) = folder_labels(packs_of(*keys))
    assert labels.tolist() == [1, 0, 0, 2]
    with pytest.raises(ValueError, match=r"x\.jpg"):
        folder_labels(packs_of("a/1.jpg", "x.jpg"))


def test_folders_of_several_urls_are_numbered_together() -> None:
    """One class is one number, whichever URL it comes from."""
    first, second = folder_labels([*packs_of("b/1.jpg"), *packs_of("a/1.jpg", "b/2.jpg")])
    assert (first.tolist(), second.tolist()) == ([1], [0, 1])


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("t.csv", b"file_name,breed\na/1.jpg,pug\r\na/2.jpg,ape\n"),
        ("t.csv", b"\xef\xbb\xbfid,other,breed\na/1,x,pug\na/2,y,ape\n"),
        ("t.tsv", b"path\tlabel\n1\tpug\n2.jpg\tape\n"),
        ("t.jsonl", b'{"file_name": "a/1.jpg", "breed": "pug"}\n\n{"breed": "ape", "file_name": "a/2.jpg"}\n'),
    ],
)
def test_tables_are_looked_up(file: str, data: bytes) -> None:
    """Rows name samples by path, with or without folder and extension; texts are numbered in order."""
    (labels,) = table_labels(packs_of("a/1.jpg", "a/2.jpg"), parse_table(file, data, "breed"))
    assert labels.tolist() == [1, 0]


def test_numbers_stay_what_they_are() -> None:
    """Whole numbers are labels as they are, negative ones too."""
    assert parse_table("t.csv", b"path,label\na,-7\nb,12\n", "label") == {"a": -7, "b": 12}
    assert parse_table("t.jsonl", b'{"path": "a", "label": 3.0}', "label") == {"a": 3}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"path,label\na,1\na,2\n", "two"),
        (b"path,x,y\na,1,2\n", "'label'"),
        (b"path\na\n", "column"),
        (b"path,label\na\n", "row 1"),
        (b"path,label\na,9999999999999999999\n", "2\\*\\*60"),
        (b'path,label\na,"x', "table"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_tables_that_cannot_be_right(data: bytes, reason: str) -> None:
    """What a table does not say, or says twice, is an error that tells why."""
    with pytest.raises(ValueError, match=reason):
        parse_table("t.csv", data, "label")


def test_a_sample_without_a_row_is_named() -> None:
    """A table must know every sample."""
    with pytest.raises(ValueError, match=r"a/2\.jpg"):
        table_labels(packs_of("a/1.jpg", "a/2.jpg"), {"a/1.jpg": 1})


@given(st.sampled_from(["t.csv", "t.tsv", "t.jsonl"]), st.binary(max_size=60))
def test_any_bytes_make_labels_or_an_error(file: str, noise: bytes) -> None:
    """Nothing in a table is trusted."""
    for data in (noise, b"path,label\n" + noise, b'{"path": "a", "label": ' + noise):
        try:
            labels = parse_table(file, data, "label")
        except ValueError:
            continue
        assert all(isinstance(value, int) and fits(value) for value in labels.values())


@given(st.integers(-(1 << 60), (1 << 60) - 1), st.integers(0, 1 << 60))
def test_numbers_are_told_from_places(value: int, place: int) -> None:
    """A label comes back from where it "starts"; no place in a file is taken for one."""
    assert number_of(int(number_at(np.array([value]))[0])) == value
    assert number_of(place) is None


def test_recipes_of_labels() -> None:
    """The forms of a recipe, and what is wrong with others; unasked for, no label is a field."""
    field = parse_field("label", "folder")
    assert (field.name, field.sources, field.codec) == ("label", (FOLDER,), "int")
    for text in ("table:s3://b/t.csv:x", '{"decode": "table", "file": "s3://b/t.csv", "column": "x"}'):
        found = table_of(label_source("label", text))
        assert found is not None
        assert (found.file, found.column) == ("s3://b/t.csv", "x")
    plain = table_of(label_source("label", "table:s3://b/t.csv"))
    assert plain is not None
    assert (plain.file, plain.column) == ("s3://b/t.csv", "label")
    for text in ("table:t.xls", '{"decode": "table"}', '{"decode": "table", "file": "t.csv", "x": 1}'):
        with pytest.raises(BadRecipe):
            parse_field("label", text)
    assert [one.name for one in default_fields(("jpg", FOLDER))] == ["jpg"]
