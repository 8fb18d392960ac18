"""Tables: what the writer writes is what the format finds, and no other bytes do harm."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard
from feedd.formats.format_registry import get
from feedd.formats.table import MAGIC, TableColumn, TableFoot
from feedd.tables.writer import Piece, TableWriter
from tests.budget import budget
from tests.fakes.making import OutBytes

URL = "s3://b/shard"


def fixed(values: list[int | None]) -> Piece:
    """Return numbers as a piece of an int32 column."""
    numbers = np.array([value or 0 for value in values], np.int32)
    return Piece(numbers, None, np.array([value is not None for value in values]))


def variable(values: list[bytes | None]) -> Piece:
    """Return bytes as a piece."""
    parts = [value or b"" for value in values]
    sizes = np.array([len(part) for part in parts], np.int64)
    return Piece(np.frombuffer(b"".join(parts), np.uint8), sizes, np.array([value is not None for value in values]))


def raw(shard: bytes) -> dict[str, list[bytes | None]]:
    """Return every field's bytes."""
    index = get("table").index(memoryview(shard), URL)
    return {
        name: [
            None if size < 0 else shard[start : start + size]
            for start, size in zip(index.starts[column].tolist(), index.sizes[column].tolist(), strict=True)
        ]
        for column, name in enumerate(index.fields)
    }


@settings(max_examples=budget(60), deadline=None)
@given(keys=st.lists(st.text(max_size=6), max_size=9), at=st.integers(0, 400), byte=st.integers(0, 255))
def test_keys_of_rows(keys: list[str], at: int, byte: int) -> None:
    """Rows may have keys of their own; broken ones are a broken shard."""
    out = OutBytes()
    writer = TableWriter(out, len(keys), URL)
    writer.variable("a", "", [variable([b"x"] * len(keys))])
    encoded = [key.encode() for key in keys]
    writer.keys(b"".join(encoded), np.cumsum([len(key) for key in encoded], dtype=np.int64))
    writer.finish()
    index = get("table").index(memoryview(bytes(out.written)), URL)
    assert [index.key(row) for row in range(len(keys))] == keys
    out.written[at % len(out.written)] = byte
    try:
        index = get("table").index(memoryview(bytes(out.written)), URL)
    except BadShard:
        return
    for row in range(index.sample_count):
        index.key(row)


def test_as_many_keys_as_rows() -> None:
    """Others are refused when they are written."""
    with pytest.raises(BadShard, match="__key__"):
        TableWriter(OutBytes(), 3, URL).keys(b"ab", np.array([1, 2]))


NUMBERS = st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=12)


@settings(max_examples=budget(80), deadline=None)
@given(numbers=NUMBERS, data=st.data(), step=st.integers(1, 5))
def test_what_is_written_is_found(numbers: list[int | None], data: st.DataObject, step: int) -> None:
    """Columns of fixed and of any width, with holes, in pieces of any size, aligned; keys are numbers."""
    rows = len(numbers)
    blobs = data.draw(st.lists(st.one_of(st.none(), st.binary(max_size=9)), min_size=rows, max_size=rows))
    out = OutBytes()
    writer = TableWriter(out, rows, URL)
    writer.fixed("N", "int32", 4, (fixed(numbers[at : at + step]) for at in range(0, rows, step)))
    writer.variable("b", "", (variable(blobs[at : at + step]) for at in range(0, rows, step)))
    assert writer.finish() == "table"
    shard = bytes(out.written)
    found = raw(shard)
    assert found["n"] == [None if one is None else one.to_bytes(4, "little", signed=True) for one in numbers]
    assert found["b"] == blobs
    index = get("table").index(memoryview(shard), URL)
    assert [index.key(number) for number in range(rows)] == [f"{number:08}" for number in range(rows)]
    assert index.encodings == ("int32", "")
    if rows:
        assert index.starts[0, 0] % 64 == index.starts[1, 0] % 64 == 0


def test_columns_of_other_lengths_are_refused() -> None:
    """By the writer: they are no table."""
    writer = TableWriter(OutBytes(), 2, URL)
    for pieces in ([fixed([1])], [fixed([1, 2]), fixed([3])]):
        with pytest.raises(BadShard, match="2 rows of column 'n'"):
            writer.fixed("n", "int32", 4, pieces)
    with pytest.raises(BadShard, match="bytes of values"):
        writer.variable("b", "", [Piece(np.zeros(3, np.uint8), np.array([1, 1], np.int64))])
    with pytest.raises(BadShard, match="at most"):
        TableWriter(OutBytes(), 1 << 27, URL)


def table(column: TableColumn, rows: int = 2, body: bytes = bytes(120)) -> bytes:
    """Return a table of one column, wherever that says that it lies."""
    foot = msgspec.json.encode(TableFoot(rows, (column,)))
    return MAGIC + body + foot + len(foot).to_bytes(4, "little") + MAGIC


GOOD = TableColumn("n", "int32", 8, width=4)


@pytest.mark.parametrize(
    "changed",
    [
        {"at": -1},
        {"at": 128},
        {"width": 61},
        {"width": 1 << 62},
        {"encoding": "int33"},
        {"valid_at": 127},
        {"valid_at": -2},
        {"width": -1, "ends_at": 120},
        {"width": -1, "ends_at": -1},
        {"width": -1, "ends_at": 1 << 70},
    ],
)
def test_columns_that_lie_elsewhere_are_refused(changed: dict[str, Any]) -> None:
    """Outside of the file, in its foot, or of a kind that nobody knows."""
    assert raw(table(GOOD)) == {"n": [bytes(4)] * 2}
    with pytest.raises(BadShard, match="at byte"):
        raw(table(msgspec.structs.replace(GOOD, **changed)))


@pytest.mark.parametrize("ends", [[-1, 2], [3, 2], [1, 200], [0, -(1 << 63)], [(1 << 63) - 1, -5]])
def test_ends_that_do_not_ascend_are_refused(ends: list[int]) -> None:
    """So no value lies outside of its column."""
    body = np.array(ends, np.int64).tobytes() + bytes(100)
    with pytest.raises(BadShard):
        raw(table(TableColumn("b", "", 24, ends_at=8), body=body))
    good = np.array([0, 100], np.int64).tobytes() + bytes(100)
    assert raw(table(TableColumn("b", "", 24, ends_at=8), body=good)) == {"b": [b"", bytes(100)]}


def test_rows_that_nobody_has_memory_for_are_refused() -> None:
    """Before an index of them is allocated."""
    for rows in (-1, 1 << 40):
        with pytest.raises(BadShard):
            raw(table(msgspec.structs.replace(GOOD, width=0), rows=rows))


@settings(max_examples=budget(200), deadline=None)
@given(data=st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    """A table damaged anywhere is an index within its bytes, or a BadShard."""
    out = OutBytes()
    writer = TableWriter(out, 3, URL)
    writer.fixed("n", "int32", 4, [fixed([1, None, 3])])
    writer.variable("b", "text", [variable([b"a", None, b"ccc"])])
    writer.finish()
    shard = bytearray(out.written)
    for _ in range(data.draw(st.integers(1, 4))):
        shard[data.draw(st.integers(0, len(shard) - 1))] = data.draw(st.integers(0, 255))
    shard = shard[: data.draw(st.integers(0, 3 * len(shard)))]
    try:
        index = get("table").index(memoryview(bytes(shard)), URL)
    except BadShard:
        return
    inside = index.sizes >= 0
    assert ((index.starts >= 0) & (index.starts + index.sizes <= len(shard)))[inside].all()
    assert index.sample_count == 3
