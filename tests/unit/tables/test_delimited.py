"""CSV and TSV as forms."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadRecipe, BadShard
from feedd.formats.missing_reasons import missing_reason
from feedd.tables import delimited as delimited_file
from feedd.tables import writer as table_writer
from feedd.tables.arrow_columns import column_encoding
from feedd.tables.columns import DELIMITER, TYPES, head_params, params_of, strict_params, text_encoding, typed_params
from feedd.tables.delimited import (
    _TYPES,
    CSV_CONVERTER,
    PIPE_CONVERTER,
    SEMICOLON_CONVERTER,
    TSV_CONVERTER,
    DelimitedReader,
)
from feedd.values import ByteRange
from tests.budget import budget
from tests.fakes.making import HeldBytes, Made, OutBytes, make

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used


def test_columns_are_typed_by_all_their_values() -> None:
    """Numbers, truth, text; a hole where there is nothing, empty text in text."""
    text = b'Name,n,x,ok,"two, words"\na,1,0.5,true,\n"b\n""c""",,2,false,z\n'
    made = make(CSV_CONVERTER, text)
    assert made.index.fields == ("name", "n", "x", "ok", "two, words")
    assert made.index.encodings == ("text", "int64", "float64", "bool", "text")
    assert made.values("name") == ["a", 'b\n"c"']
    assert made.values("n") == [1, None]
    assert made.values("x") == [0.5, 2.0]
    assert made.values("ok") == [1, 0]
    assert made.values("two, words") == ["", "z"]
    late = b"n\n" + b"1\n" * 400_000 + b"1.5\n"
    assert make(CSV_CONVERTER, late).index.encodings == ("float64",)


def test_rows_without_a_header() -> None:
    """A first row that holds a number is a sample, its columns are numbered; so if they are asked for by number."""
    made = make(CSV_CONVERTER, b"1,0.5,a\r\n0,0.25,b\r\n")
    assert made.index.fields == ("0", "1", "2")
    assert (made.values("0"), made.values("1"), made.values("2")) == ([1, 0], [0.5, 0.25], ["a", "b"])
    assert make(CSV_CONVERTER, b"a,b\nc,d\n", params_of([["1"]])).values("1") == ["b", "d"]
    assert make(CSV_CONVERTER, b"a,b\nc,d\n").values("b") == ["d"]


def test_tabs_and_wanted_columns() -> None:
    """TSV is CSV by another sign; only what is wanted is kept."""
    made = make(TSV_CONVERTER, b"\xef\xbb\xbfA\tb,c\n1\tx\n2\ty\n", params_of([["a"]]))
    assert (made.index.fields, made.values("a")) == (("a",), [1, 2])
    with pytest.raises(BadRecipe, match=r"got z.*there are A, b,c"):
        make(TSV_CONVERTER, b"A\tb,c\n1\tx\n", strict_params(params_of([["z"]])))


def test_types_tell_how_columns_are_stored() -> None:
    """Without the library, as it tells it."""
    for name, type_ in _TYPES.items():
        how = column_encoding(type_)
        assert how is not None
        assert text_encoding(name) == how.encoding, name


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_the_sign_between_values_is_found(sign: str) -> None:
    """As spreadsheets write them; what the types say names it, and no other shard is then judged by itself."""
    text = b'A;b\n1;"x;, y"\n2;z, w\n'.replace(b";", sign.encode())
    made = make(CSV_CONVERTER, text)
    assert (made.index.fields, made.values("a")) == (("a", "b"), [1, 2])
    assert made.values("b") == [f"x{sign}, y", "z, w"]
    out = OutBytes()
    held = HeldBytes(len(text), (ByteRange(0, len(text)),), memoryview(text))
    CSV_CONVERTER.make(held, "s3://b/a.csv", TYPES, out)
    assert json.loads(bytes(out.written)) == {"a": "int64", "b": "string", DELIMITER: sign}
    told = typed_params([["a"]], {"a": "int64"}, delimiter=sign)
    assert make(CSV_CONVERTER, f"a{sign}b\n1{sign}2\n".encode(), told).values("a") == [1]
    with pytest.raises(BadRecipe, match="got a"):
        make(CSV_CONVERTER, f"a{sign}b\n1{sign}2\n".encode(), strict_params(typed_params([["a"]], {"a": "int64"})))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b"a;b\n1,5;2,5\n", ("a", "b")),  # decimals as many countries write them: text
        (b"1,5;2,5\n", ("0", "1", "2")),  # nothing tells
        (b"text\nhello; you\n", ("text",)),
        (b"a,b;c\n1,2\n", ("a", "b;c")),
        (b'"a;b"\n1\n', ("a;b",)),
        (b"a;b\n" + b"1;2\n" * 30_000, ("a", "b")),
        (b"a;b\n" + b"x" * 70_000 + b";1\n", ("a", "b")),
    ],
)
def test_a_comma_goes_before_other_signs(text: bytes, fields: tuple[str, ...]) -> None:
    """Another sign is taken only where it cuts all of the first rows alike, and a comma none."""
    assert make(CSV_CONVERTER, text).index.fields == fields
    assert make(TSV_CONVERTER, b"a;b\n1;2\n").index.fields == ("a;b",)


def test_the_sign_between_values_is_named() -> None:
    """Then nothing is guessed."""
    assert make(SEMICOLON_CONVERTER, b"1,5;2,5\n").index.fields == ("0", "1")
    assert make(SEMICOLON_CONVERTER, b"a,b\n1,2\n").index.fields == ("a,b",)
    assert make(PIPE_CONVERTER, b"a|b;c\n1|2\n").index.fields == ("a", "b;c")


@given(st.text('a1,;|\t\n"', max_size=60))
def test_any_text_has_one_sign(text: str) -> None:
    """Rows, or BadShard; the same for the same text."""
    data = text.encode()
    try:
        made = make(CSV_CONVERTER, data)
    except BadShard:
        return
    assert make(CSV_CONVERTER, data).index.fields == made.index.fields


def test_nothing_is_no_rows() -> None:
    """Empty files, blank ones, and a header alone."""
    for text in (b"", b"\n\n", b"a,b\n", b"a,b"):
        assert make(CSV_CONVERTER, text).index.sample_count == 0


def why(made: Made, name: str) -> list[str]:
    """Return the reason, as far as it is told, why each row lacks a column."""
    column = made.index.fields.index(name)
    found = [missing_reason(made.index, [column], row) for row in range(made.index.sample_count)]
    return ["" if one is None else one.reason for one in found]


def test_rows_of_other_lengths_are_bad() -> None:
    """They are no samples, but have their places; whichever columns are wanted, with a header and without."""
    text = 'a,b\n1,x\n3\n\n4,"y\nz"\n5,6,7\n8,\né\n'.encode()
    for made in (make(CSV_CONVERTER, text), make(CSV_CONVERTER, text, params_of([["b"]]))):
        assert made.values("b") == ["x", None, "y\nz", None, "", None]
        assert ["as many values" in one for one in why(made, "b")] == [False, True, False, True, False, True]
        assert [one.rpartition("got ")[2] for one in why(made, "b") if one] == ["1 for 2", "3 for 2", "1 for 2"]
    bare = make(CSV_CONVERTER, b"1,2\n3\n4,5\n")
    assert (bare.values("0"), bare.values("1")) == ([1, None, 4], [2, None, 5])
    damaged = "ä,b\n1,ö\n2,x\n3,ü\n".encode().replace(b",x", b"\xacx").replace("ü".encode(), b"\xfc")
    made = make(CSV_CONVERTER, damaged, typed_params([], {"ä": "int64", "b": "string"}))  # one bit of a comma
    assert (made.values("ä"), made.values("b")) == ([1, None, 3], ["ö", None, None])
    last = make(CSV_CONVERTER, b"a,b\n1,2\n3")
    assert last.values("a") == [1, None]
    with pytest.raises(BadShard, match=r"more or fewer values than the first: 3 for 2 in sample 0, 39 more"):
        make(CSV_CONVERTER, b"a,b\n" + b"1,2,3\n" * 40)


def test_values_of_other_types_are_bad() -> None:
    """Only those samples are: holes stay holes, and other columns are as they are."""
    typed = typed_params([], {"n": "int64", "t": "string", "d": "date32[day]", "x": "double"})
    text = (
        b"n,t,d,x\n1,a,2020-01-01,1\nx,b,2020-01-02,\n,\xff,soon,2\n99999999999999999999,c,2020-01-03,NaN\n 7,d,,1e3\n"
    )
    made = make(CSV_CONVERTER, text, typed)
    assert made.values("n") == [1, None, None, None, 7]
    assert made.values("t") == ["a", "b", None, "c", "d"]
    assert made.values("d") == [18262, 18263, None, 18264, None]
    assert made.values("x")[0::2] == [1.0, 2.0, 1000.0]
    assert [bool(one) for one in why(made, "n")] == [False, True, False, True, False]
    assert [bool(one) for one in why(made, "t")] == [False, False, True, False, False]
    assert why(made, "n")[1].startswith(
        "expected int64 in column 'n', as the recipe or the dataset's first shard says, got"
    )
    assert [one.rpartition("got ")[2].partition(";")[0] for one in why(made, "n") if one] == [
        "invalid value 'x'",
        "invalid value '99999999999999999999'",
    ]
    assert r"invalid value '\\xff'" in why(made, "t")[2]
    both = make(CSV_CONVERTER, b"n,t\n1,a\nx\nx,b\n2,c\n", typed)
    assert (both.values("n"), both.values("t")) == ([1, None, None, 2], ["a", None, "b", "c"])
    assert ["int64" in one for one in why(both, "n")] == [False, False, True, False]
    assert "'x'" in why(both, "n")[2]
    many = make(CSV_CONVERTER, b"n,t\n" + b"1,x\n" * 60 + b"no,x\n" * 40, typed)
    assert ["invalid value 'no'" in one for one in why(many, "n")] == [60 <= row < 76 for row in range(100)]
    with pytest.raises(BadShard, match=r"expected int64 in column 'n'.*got invalid value 'x' in row 2"):
        make(CSV_CONVERTER, b"n\n" + b"x\n" * 40, typed)


_CELLS = st.sampled_from(
    ["", "1", "-7", " 2", "2.5", "1e400", "x", "NULL", "true", "2020-02-30", '"3"', '"a,b"', '"a""\n"', "é"]
)


@settings(max_examples=budget(120), deadline=None)
@given(
    cells=st.lists(st.tuples(_CELLS, _CELLS), min_size=1, max_size=40),
    kinds=st.tuples(
        *[st.sampled_from(["int64", "double", "bool", "date32[day]", "timestamp[s]", "string", "uint8"])] * 2
    ),
    short=st.sets(st.integers(0, 39), max_size=3),
)
@pytest.mark.slow
def test_bad_rows_change_no_others(cells: list[tuple[str, str]], kinds: tuple[str, str], short: set[int]) -> None:
    """Each row is what it is in a file of its own; what is bad in that is bad among others."""
    typed = typed_params([], dict(zip("ab", kinds, strict=True)))
    lines = [",".join(pair) if row not in short else pair[0] or "1" for row, pair in enumerate(cells)]
    try:
        made = make(CSV_CONVERTER, "\n".join(["a,b", *lines, ""]).encode(), typed)
    except BadShard:
        assert len(lines) > 16
        return
    assert made.index.sample_count == len(lines)
    told = {name: why(made, name) for name in "ab"}
    for row, line in enumerate(lines):
        alone = make(CSV_CONVERTER, f"a,b\n{line}\n".encode(), typed)
        for name in "ab":
            column = made.index.fields.index(name)
            assert told[name][row].partition(", got")[0] == why(alone, name)[0].partition(", got")[0]
            assert (int(made.index.sizes[column, row]) < 0) == (int(alone.index.sizes[column, 0]) < 0)
            assert repr(made.values(name)[row]) == repr(alone.values(name)[0])


TABLE = {"n": [1, 2, 3], "x": [0.5, -1.0, 1e300], "t": ["a", 'q"', "l\n,"]}


def test_what_pyarrow_writes_is_read() -> None:
    """Whatever it quotes."""
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(TABLE), sink)
    made = make(CSV_CONVERTER, sink.getvalue())
    assert {name: made.values(name) for name in made.index.fields} == TABLE


@settings(max_examples=budget(150), deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text('a1,"\n\r.-\t x', max_size=80).map(str.encode)))
def test_no_bytes_do_harm(text: bytes) -> None:
    """Any text is a table, or refused as a bad shard."""
    for form in (CSV_CONVERTER, TSV_CONVERTER):
        for params in ("", typed_params([], {}, "int64")):
            try:
                make(form, text, params)
            except BadShard:
                continue
        try:
            types(text, form)
        except BadShard:
            continue


def types(text: bytes, form: DelimitedReader = CSV_CONVERTER) -> tuple[dict[str, str], int]:
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


@pytest.mark.slow
def test_types_are_told_by_the_start_of_a_large_object() -> None:
    """Whole rows of it; all of it where rows do not end there, as in one quoted value of many lines."""
    small = b'a,B ,n\n"x\ny",1,\n'
    assert types(small) == ({"a": "string", "b": "int64", "n": "null"}, len(small))
    rows = b'"x\ny",1\n' * (10 << 17)
    assert types(b"a,b\n" + rows) == ({"a": "string", "b": "int64"}, 8 << 20)
    long = b'a,b\n"' + b"x\n" * (5 << 20) + b'",0.5\n'
    assert types(long) == ({"a": "string", "b": "double"}, len(long))
    assert types(b"1\tx\n", TSV_CONVERTER)[0] == {"0": "int64", "1": "string"}
    assert types(b"\n") == ({}, 1)


def test_columns_are_read_with_the_types_they_are_said_to_have() -> None:
    """Whatever their values look like; a hole stays one, of text too where it is read as numbers."""
    params = typed_params([["n"], ["t"]], {"n": "float", "t": "string"})
    made = make(CSV_CONVERTER, b"N,t,u\n1,7,2\n,08,x\n", params)
    assert (made.index.fields, made.index.encodings) == (("n", "t"), ("float32", "text"))
    assert (made.values("n"), made.values("t")) == ([1.0, None], ["7", "08"])
    every = make(CSV_CONVERTER, b"a,b\n1,2\n", typed_params([], {"a": "int8"}, "double"))
    assert every.index.encodings == ("int8", "float64")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (b"a,n\nx,1\n" + b"y,2.5\n" * 40, "int8 in column 'n', .* invalid value '2.5' in row 3"),
        (b"a,n\n" + b"x,300\n" * 40, "int8 in column 'n', .* invalid value '300' in row 2"),
        (b"a,n\nx,1\n" + b"\xff,2\n" * 40, "string in column 'a', .* invalid UTF8 data in row 3"),
        (b"x,1\ny,2\n", "has a row of column names, but this shard begins with x, 1"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named(text: bytes, got: str) -> None:
    """Column, value and row, where most are of another."""
    with pytest.raises(BadShard, match=got):
        make(CSV_CONVERTER, text, typed_params([], {"a": "string", "n": "int8"}))


def test_a_dataset_without_names_has_none_in_any_shard() -> None:
    """Though a first row may look like names."""
    assert make(CSV_CONVERTER, b"a,b\nc,d\n", typed_params([], {"0": "string", "1": "string"})).values("1") == [
        "b",
        "d",
    ]


@pytest.mark.parametrize("params", ["", head_params("")])
def test_too_many_columns_are_refused_before_rows_are_read(params: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first line of too many names is an error for the types as for the table; as many as may be are read."""
    monkeypatch.setattr(table_writer, "COLUMNS_MAX", 100)
    line = ",".join(f"c{number}" for number in range(100))
    assert len(make(CSV_CONVERTER, f"{line}\n{line}\n".encode(), params).index.fields) == 100
    monkeypatch.setattr(delimited_file, "DelimitedText", None)
    with pytest.raises(BadShard, match="at most 100 columns, got 101") as caught:
        make(CSV_CONVERTER, f"{line},more\n{line},1\n".encode(), params)
    assert "one list per row" in caught.value.hint


def test_an_empty_text_has_no_columns_and_no_rows() -> None:
    """It is no error, also if the columns that a recipe names must exist."""
    assert make(CSV_CONVERTER, b"", strict_params('[["a"]]')).index.sample_count == 0
