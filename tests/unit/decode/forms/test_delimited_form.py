"""CSV and TSV as forms."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.decode.forms.arrow import CSV_FORM, TSV_FORM, TYPES, DelimitedForm
from feedd.decode.forms.columns import params_of, typed_params
from feedd.errors import BadRecipe, BadShard
from feedd.values import ByteRange
from tests.budget import budget
from tests.fakes.making import HeldBytes, OutBytes, make

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used


def test_columns_are_typed_by_all_their_values() -> None:
    """Numbers, truth, text; a hole where there is nothing, empty text in text."""
    text = b'Name,n,x,ok,"two, words"\na,1,0.5,true,\n"b\n""c""",,2,false,z\n'
    made = make(CSV_FORM, text)
    assert made.index.fields == ("name", "n", "x", "ok", "two, words")
    assert made.index.stored == ("text", "int64", "float64", "bool", "text")
    assert made.values("name") == ["a", 'b\n"c"']
    assert made.values("n") == [1, None]
    assert made.values("x") == [0.5, 2.0]
    assert made.values("ok") == [1, 0]
    assert made.values("two, words") == ["", "z"]
    late = b"n\n" + b"1\n" * 400_000 + b"1.5\n"
    assert make(CSV_FORM, late).index.stored == ("float64",)


def test_rows_without_a_header() -> None:
    """A first row that holds a number is a sample, its columns are numbered; so if they are asked for by number."""
    made = make(CSV_FORM, b"1,0.5,a\r\n0,0.25,b\r\n")
    assert made.index.fields == ("0", "1", "2")
    assert (made.values("0"), made.values("1"), made.values("2")) == ([1, 0], [0.5, 0.25], ["a", "b"])
    assert make(CSV_FORM, b"a,b\nc,d\n", params_of([["1"]])).values("1") == ["b", "d"]
    assert make(CSV_FORM, b"a,b\nc,d\n").values("b") == ["d"]


def test_tabs_and_wanted_columns() -> None:
    """TSV is CSV by another sign; only what is wanted is kept."""
    made = make(TSV_FORM, b"\xef\xbb\xbfA\tb,c\n1\tx\n2\ty\n", params_of([["a"]]))
    assert (made.index.fields, made.values("a")) == (("a",), [1, 2])
    with pytest.raises(BadRecipe, match=r"got z.*there are A, b,c"):
        make(TSV_FORM, b"A\tb,c\n1\tx\n", params_of([["z"]]))


def test_nothing_is_no_rows() -> None:
    """Empty files, blank ones, and a header alone."""
    for text in (b"", b"\n\n", b"a,b\n", b"a,b"):
        assert make(CSV_FORM, text).index.sample_count == 0


def test_rows_of_other_lengths_are_refused() -> None:
    """They are no table."""
    with pytest.raises(BadShard):
        make(CSV_FORM, b"a,b\n1,2\n3\n")


TABLE = {"n": [1, 2, 3], "x": [0.5, -1.0, 1e300], "t": ["a", 'q"', "l\n,"]}


def test_what_pyarrow_writes_is_read() -> None:
    """Whatever it quotes."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(TABLE), sink)
    made = make(CSV_FORM, sink.getvalue())
    assert {name: made.values(name) for name in made.index.fields} == TABLE


@settings(max_examples=budget(150), deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text('a1,"\n\r.-\t x', max_size=80).map(str.encode)))
def test_no_bytes_do_harm(text: bytes) -> None:
    """Any text is a table, or refused as a bad shard."""
    for form in (CSV_FORM, TSV_FORM):
        for params in ("", typed_params([], {}, "int64")):
            try:
                make(form, text, params)
            except BadShard:
                continue
        try:
            types(text, form)
        except BadShard:
            continue


def types(text: bytes, form: DelimitedForm = CSV_FORM) -> tuple[dict[str, str], int]:
    """Return what an object tells of its columns, and how much of it was fetched for that."""
    held = b""
    while True:
        whole = memoryview(held + bytes(len(text) - len(held)))
        here = HeldBytes(len(text), (ByteRange(0, len(held)),) if held else (), whole)
        wanted = form.wanted(here, TYPES)
        if not wanted:
            break
        held = text[: wanted[-1].end]
    out = OutBytes()
    assert form.make(here, "s3://b/shard", TYPES, out) == TYPES
    return json.loads(bytes(out.written)), len(held)


def test_types_are_told_by_the_start_of_a_large_object() -> None:
    """Whole rows of it; all of it where rows do not end there, as in one quoted value of many lines."""
    small = b'a,B ,n\n"x\ny",1,\n'
    assert types(small) == ({"a": "string", "b": "int64", "n": "null"}, len(small))
    rows = b'"x\ny",1\n' * (10 << 17)
    assert types(b"a,b\n" + rows) == ({"a": "string", "b": "int64"}, 8 << 20)
    long = b'a,b\n"' + b"x\n" * (5 << 20) + b'",0.5\n'
    assert types(long) == ({"a": "string", "b": "double"}, len(long))
    assert types(b"1\tx\n", TSV_FORM)[0] == {"0": "int64", "1": "string"}
    assert types(b"\n") == ({}, 1)


def test_columns_are_read_with_the_types_they_are_said_to_have() -> None:
    """Whatever their values look like; a hole stays one, of text too where it is read as numbers."""
    params = typed_params([["n"], ["t"]], {"n": "float", "t": "string"})
    made = make(CSV_FORM, b"N,t,u\n1,7,2\n,08,x\n", params)
    assert (made.index.fields, made.index.stored) == (("n", "t"), ("float32", "text"))
    assert (made.values("n"), made.values("t")) == ([1.0, None], ["7", "08"])
    every = make(CSV_FORM, b"a,b\n1,2\n", typed_params([], {"a": "int8"}, "double"))
    assert every.index.stored == ("int8", "float64")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (b"a,n\nx,1\ny,2.5\n", "int8 in column 'n', .* invalid value '2.5' in row 3"),
        (b"a,n\nx,300\n", "int8 in column 'n', .* invalid value '300' in row 2"),
        (b"a,n\nx,1\n\xff,2\n", "string in column 'a', .* invalid UTF8 data in row 3"),
        (b"x,1\ny,2\n", "a first row of names, as the dataset's first shard has, got x, 1"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named(text: bytes, got: str) -> None:
    """Column, value and row."""
    with pytest.raises(BadShard, match=got):
        make(CSV_FORM, text, typed_params([], {"a": "string", "n": "int8"}))


def test_a_dataset_without_names_has_none_in_any_shard() -> None:
    """Though a first row may look like names."""
    assert make(CSV_FORM, b"a,b\nc,d\n", typed_params([], {"0": "string", "1": "string"})).values("1") == ["b", "d"]
