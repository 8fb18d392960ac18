"""Labels of plain objects: by folder, and from tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset import object_labels as objects_labels
from feedd.dataset.object_labels import (
    UNLABELLED,
    LabelTable,
    folder_labels,
    parse_table,
    sample_names,
    table_labels,
)
from feedd.errors import BadRecipe
from feedd.recipe.label_recipes import (
    FOLDER,
    classes_of,
    fits,
    is_label,
    label_source,
    number_at,
    number_of,
    table_of,
    versioned,
)
from feedd.recipe.recipe import default_fields, parse_field, spec_of
from feedd.values import ObjectRef
from tests.unit.catalog.test_objects_grouping import grouped, refs_of

if TYPE_CHECKING:
    from feedd.dataset.packs import Packs


def packs_of(*keys: str) -> list[Packs]:
    """Return the packs of a listing of these keys."""
    packs = grouped(refs_of(dict.fromkeys(keys, 10))).packs
    assert packs is not None
    return [packs]


def test_folders_are_numbered_in_order() -> None:
    """As ImageFolder has it: by name of the folder, not by where keys sort it; deeper ones belong to the first."""
    keys = ["a-b/1.jpg", "a/1.jpg", "a/deep/1.jpg", "c/1.jpg", "c/1.json"]
    labels = folder_labels(packs_of(*keys))
    assert [one.tolist() for one in labels.values] == [[1, 0, 0, 2]]
    assert labels.classes == ("a", "a-b", "c")
    assert (labels.missing, labels.first_missing) == (0, "")
    some = folder_labels(packs_of("b/1.jpg", "a/1.jpg", "x.jpg", "y.jpg"))
    assert [one.tolist() for one in some.values] == [[0, 1, UNLABELLED, UNLABELLED]]
    assert (some.classes, some.missing, some.first_missing) == (("a", "b"), 2, "x.jpg")


@given(st.lists(st.tuples(st.text("ab-/.é", max_size=3), st.integers(0, 9)), max_size=20))
def test_folders_are_numbered_as_image_folder_does(names: list[tuple[str, int]]) -> None:
    """What ImageFolder would say of the same paths: its classes are the sorted names of folders."""
    keys = [f"{folder}/{number}.jpg".lstrip("/").replace("//", "/") for folder, number in names]
    packs = packs_of(*keys) if keys else []
    classes = sorted({key.split("/", 1)[0] for key in keys if "/" in key})
    labels = folder_labels(packs)
    samples = [name for one in packs for name in sample_names(one)]
    expected = [classes.index(name.split("/", 1)[0]) if "/" in name else UNLABELLED for name in samples]
    assert [value for one in labels.values for value in one.tolist()] == expected
    assert labels.classes == tuple(classes)


def test_too_many_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither folders nor texts of a table are named without end, by number or by length."""
    monkeypatch.setattr(objects_labels, "CLASSES_MAX", 2)
    with pytest.raises(ValueError, match="at most 2 folders"):
        folder_labels(packs_of("a/1.jpg", "b/1.jpg", "c/1.jpg"))
    rows = b"path,label\n1,a\n2,b\n3,c\n"
    with pytest.raises(ValueError, match="at most 2 texts"):
        parse_table("t.csv", rows, "label")
    monkeypatch.setattr(objects_labels, "CLASSES_MAX", 3)
    monkeypatch.setattr(objects_labels, "_NAMES_CHARS_MAX", 2)
    with pytest.raises(ValueError, match="at most 2 characters"):
        parse_table("t.csv", rows, "label")


def test_folders_of_several_urls_are_numbered_together() -> None:
    """One class is one number, whichever URL it comes from."""
    first, second = folder_labels([*packs_of("b/1.jpg"), *packs_of("a/1.jpg", "b/2.jpg")]).values
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
    labels = table_labels(packs_of("a/1.jpg", "a/2.jpg"), parse_table(file, data, "breed"))
    assert [one.tolist() for one in labels.values] == [[1, 0]]
    assert labels.classes == ("ape", "pug")


def test_numbers_stay_what_they_are() -> None:
    """Whole numbers are labels as they are, negative ones too."""
    assert parse_table("t.csv", b"path,label\na,-7\nb,12\n", "label") == LabelTable({"a": -7, "b": 12})
    assert parse_table("t.jsonl", b'{"path": "a", "label": 3.0}', "label") == LabelTable({"a": 3})


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("t.csv", b"path,label\na,10\nb,\nc,9\n"),
        ("t.jsonl", b'{"path": "a", "label": 10}\n{"path": "b", "label": null}\n{"path": "c", "label": 9}'),
        ("t.jsonl", b'{"path": "a", "label": 10}\n{"path": "b", "x": 1}\n{"path": "c", "label": "9"}'),
    ],
)
def test_an_empty_label_is_none(file: str, data: bytes) -> None:
    """A row without a label is as good as none: other labels do not become texts by it."""
    table = parse_table(file, data, "label")
    assert table == LabelTable({"a": 10, "c": 9})
    labels = table_labels(packs_of("a.jpg", "b.jpg", "c.jpg"), table)
    assert labels.values[0].tolist() == [10, UNLABELLED, 9]
    assert (labels.missing, labels.first_missing) == (1, "b.jpg")


def test_classes_are_those_of_the_whole_table() -> None:
    """Rows of samples that are not there count: who has fewer samples numbers alike."""
    table = parse_table("t.csv", b"path,label\nz,ape\na,cat\nb,dog\n", "label")
    assert table_labels(packs_of("b.jpg"), table).values[0].tolist() == [2]
    assert table_labels(packs_of("a.jpg", "b.jpg"), table).values[0].tolist() == [1, 2]


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


def test_classes_that_a_recipe_names_number_labels() -> None:
    """In their order, whatever there is; what is none of them is no label, and numbers are names like others."""
    packs = packs_of("b/1.jpg", "a/1.jpg", "c/1.jpg", "x.jpg")
    labels = folder_labels(packs, ("c", "z", "a"))
    assert labels.values[0].tolist() == [2, UNLABELLED, 0, UNLABELLED]
    assert (labels.classes, labels.missing, labels.first_missing) == (("c", "z", "a"), 2, "b/1.jpg")
    table = parse_table("t.csv", b"path,label\na,10\nb,9\nc,\nd,8\n", "label", ("9", "10"))
    assert table == LabelTable({"a": 1, "b": 0}, ("9", "10"))


def test_classes_travel_in_sources() -> None:
    """What a recipe names is part of where labels come from, and so of the fingerprint; without, nothing changed."""
    plain, named = (parse_field("y", text).sources[0] for text in ("folder", '{"decode": "folder", "classes": ["b"]}'))
    assert (plain, classes_of(plain), classes_of(named)) == (FOLDER, (), ("b",))
    short, long = (
        parse_field("y", text).sources[0]
        for text in ("table:t.csv", '{"decode": "table", "file": "t.csv", "classes": ["é", "a"]}')
    )
    assert short == '__table__["t.csv","y"]'
    assert (classes_of(short), classes_of(long)) == ((), ("é", "a"))
    ref = ObjectRef("s3://b", "t.csv", 9, "etag")
    for source in (short, long):
        table = table_of(source)
        assert table is not None
        assert table_of(versioned(table, ref)) == ("s3://b/t.csv", "y", "etag", classes_of(source))
        assert is_label(versioned(table, ref))
        assert (classes_of(source) == ()) == (versioned(table, ref) == '__table__["s3://b/t.csv","y","etag"]')
    assert {is_label(source) for source in (plain, named, short, long)} == {True}


@pytest.mark.parametrize(
    ("classes", "reason"),
    [('["a", "b", "a"]', "'a' twice"), ('[""]', "without blanks"), ('["a "]', "without blanks"), ("[1]", "str")],
)
def test_classes_that_cannot_be_right(classes: str, reason: str) -> None:
    """Each has a name of its own, and not all names of the world fit."""
    for decode in ('"int"', '"folder"', '"table", "file": "t.csv"'):
        with pytest.raises(BadRecipe, match=reason):
            parse_field("y", f'{{"decode": {decode}, "classes": {classes}}}')
    many = ", ".join(f'"{number:09}"' for number in range(6000))
    with pytest.raises(BadRecipe, match="at most"):
        parse_field("y", f'{{"decode": "int", "classes": [{many}]}}')


def test_a_sample_without_a_row_is_named() -> None:
    """What a table does not know has no label, is counted, and the first is named."""
    labels = table_labels(packs_of("a/1.jpg", "a/2.jpg"), LabelTable({"a/1.jpg": 1}))
    assert labels.values[0].tolist() == [1, UNLABELLED]
    assert (labels.missing, labels.first_missing) == (1, "a/2.jpg")


@given(st.sampled_from(["t.csv", "t.tsv", "t.jsonl"]), st.binary(max_size=60))
def test_any_bytes_make_labels_or_an_error(file: str, noise: bytes) -> None:
    """Nothing in a table is trusted."""
    for data in (noise, b"path,label\n" + noise, b'{"path": "a", "label": ' + noise):
        try:
            labels = parse_table(file, data, "label")
        except ValueError:
            continue
        assert all(isinstance(value, int) and fits(value) for value in labels.rows.values())
        assert not labels.classes or set(labels.rows.values()) == set(range(len(labels.classes)))


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
    hot = parse_field("label", '{"decode": "folder", "as": "y", "transforms": [{"op": "one_hot", "classes": 3}]}')
    assert (hot.name, hot.sources, spec_of(hot).shape) == ("y", (FOLDER,), (3,))
    wrong = ('{"decode": "folder", "x": 1}', '{"decode": "folder", "as": ""}', '{"decode": "table"}')
    for text in ("table:t.xls", *wrong, '{"decode": "table", "file": "t.csv", "x": 1}'):
        with pytest.raises(BadRecipe):
            parse_field("label", text)
    assert [one.name for one in default_fields(("jpg", FOLDER))] == ["jpg"]


@pytest.mark.parametrize(
    ("file", "rows"), [("l.csv", b"path,label\na,0.5\nb,-2\n"), ("l.jsonl", b'{"path":"a","label":0.5}')]
)
def test_fractions_are_no_classes(file: str, rows: bytes) -> None:
    """Numbers that are not whole are refused, not ranked; beside a word they are words, named they are names."""
    with pytest.raises(ValueError, match=r"whole numbers or names as labels, got '0\.5'"):
        parse_table(file, rows, "label")
    assert parse_table("l.csv", b"path,label\na,0.5\nb,half\n", "label").classes == ("0.5", "half")
    assert parse_table(file, rows, "label", ["0.5"]).rows == {"a": 0}
