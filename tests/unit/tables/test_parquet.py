"""Parquet as a form, against what pyarrow says of the same file."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import faulthandler
import io
import os
import resource
import signal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadRecipe, BadShard, Unsupported
from feedd.tables.columns import params_of, strict_params
from feedd.tables.parquet import PARQUET_CONVERTER, dictionary_value_bytes
from tests.budget import budget
from tests.fakes.files import parquet
from tests.fakes.making import make

EPOCH = dt.date(1970, 1, 1)
MIDNIGHT = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as pyarrow has times without a zone


def micros(value: dt.datetime) -> int:
    """Return microseconds since 1970."""
    return (value - MIDNIGHT) // dt.timedelta(microseconds=1)


MOMENT = MIDNIGHT + dt.timedelta(20_000, 12_345, 123456)
# name: (type, values, what a sample's value is)
COLUMNS: dict[str, tuple[Any, list[Any], Any]] = {
    "flag": (pa.bool_(), [True, False, None, True, False], int),
    "i8": (pa.int8(), [1, -2, None, 3, 127], None),
    "u8": (pa.uint8(), [1, 2, None, 3, 255], None),
    "i16": (pa.int16(), [1, -2, None, 3, -32768], None),
    "u16": (pa.uint16(), [1, 2, None, 3, 65535], None),
    "i32": (pa.int32(), [1, -2, 5, 3, -(1 << 31)], None),
    "u32": (pa.uint32(), [1, 2, None, 3, (1 << 32) - 1], None),
    "i64": (pa.int64(), [1, -2, None, 3, -(1 << 63)], None),
    "u64": (pa.uint64(), [1, 2, None, 3, (1 << 64) - 1], None),
    "f16": (pa.float16(), [np.float16(0.5), None, np.float16(-1), np.float16(2), np.float16(7)], float),
    "f32": (pa.float32(), [0.5, None, -1.25, float("inf"), 3.0], None),
    "f64": (pa.float64(), [0.1, None, -1.25, float("inf"), 3.0], None),
    "text": (pa.string(), ["", "a", None, "grün", "x" * 1000], None),
    "large": (pa.large_string(), ["", "a", None, "grün", "x" * 1000], None),
    "blob": (pa.binary(), [b"", b"a", None, b"\0\xff", b"x" * 1000], None),
    "fixed": (pa.binary(3), [b"abc", b"\0\0\0", None, b"def", b"ghi"], None),
    "date": (pa.date32(), [EPOCH, None, dt.date(2024, 2, 29), dt.date(1960, 1, 1), EPOCH], lambda v: (v - EPOCH).days),
    "at": (pa.timestamp("us"), [MOMENT, None, MOMENT, MIDNIGHT - dt.timedelta(3_653), MOMENT], micros),
    "price": (
        pa.decimal128(12, 2),
        [decimal.Decimal("12.34"), None, decimal.Decimal("-0.01"), decimal.Decimal(0), decimal.Decimal("99.99")],
        lambda v: int(v * 100),
    ),
    "ints": (pa.list_(pa.int32()), [[1, 2, 3], [], None, [4], [5, 6]], None),
    "flags": (pa.list_(pa.bool_()), [[True], [], None, [False, True], [True] * 9], lambda v: [int(x) for x in v]),
    "deep": (
        pa.list_(pa.list_(pa.float32())),
        [[[1.0, 2.0], [3.0]], [], None, [[], [4.0]], [[5.0]]],
        lambda v: [x for row in v for x in row],
    ),
    "holes": (pa.list_(pa.int64()), [[1, None], [2], None, [None], [3, 4]], lambda v: None if None in v else v),
    "vector": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [3.0, 4.0], None, [5.0, 6.0], [7.0, 8.0]], None),
    "image": (
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        [
            {"bytes": b"jpeg", "path": "a"},
            {"bytes": None, "path": "b"},
            None,
            {"bytes": b"", "path": None},
            {"bytes": b"x" * 500, "path": "c" * 500},
        ],
        lambda v: v["bytes"],
    ),
    "words": (pa.dictionary(pa.int16(), pa.string()), ["a", "bb", None, "a", "ccc"], None),
    "nothing": (pa.null(), [None] * 5, None),
}
TABLE = pa.table({name: pa.array(values, type_) for name, (type_, values, _) in COLUMNS.items()})
OPTIONS: list[dict[str, Any]] = [
    {},
    {"row_group_size": 2},
    {"row_group_size": 1, "compression": "none", "use_dictionary": False},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"compression": "gzip", "write_page_checksum": True, "data_page_size": 1},
    {"compression": "snappy", "version": "1.0", "row_group_size": 3},
    {"compression": "brotli", "store_schema": False, "use_compliant_nested_type": False},
]


def expected(name: str, table: Any = TABLE) -> list[Any]:
    """Return a column's values as samples have them, from what pyarrow reads."""
    convert = COLUMNS[name][2]
    return [None if one is None else one if convert is None else convert(one) for one in table[name].to_pylist()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_type_is_what_pyarrow_reads(options: dict[str, Any]) -> None:
    """Whatever the encoding, compression and row groups, values and holes of every type are pyarrow's."""
    widened = ["u32"] if options.get("version") == "1.0" else []  # by that version
    table = TABLE.drop_columns(widened)
    made = make(PARQUET_CONVERTER, parquet(table, **options))
    assert made.index.fields == tuple(table.column_names)
    assert made.index.sample_count == 5
    for name in table.column_names:
        assert made.values(name) == expected(name), name


def test_types_are_told() -> None:
    """Numbers come as what they are, lists by their length if it is fixed."""
    made = make(PARQUET_CONVERTER, parquet(TABLE))
    stored = dict(zip(made.index.fields, made.index.encodings, strict=True))
    assert stored["u16"] == "uint16"
    assert stored["flag"] == "bool"
    assert stored["ints"] == "int32[]"
    assert stored["vector"] == "float32[2]"
    assert stored["deep"] == "float32[]"
    assert stored["price"] == stored["at"] == "int64"
    assert (stored["text"], stored["words"], stored["blob"], stored["image"]) == ("text", "text", "", "")


WIDE = pa.table({f"c{number:02}": np.random.default_rng(number).random(20_000) for number in range(40)})


@pytest.mark.parametrize("rows", [4_000, 20_000])
def test_only_wanted_columns_are_fetched(rows: int) -> None:
    """Of 40 columns 4 cost little more than their own bytes, and are what pyarrow reads."""
    data = parquet(WIDE, row_group_size=rows)
    wanted = ["c03", "c04", "c17", "c39"]
    made = make(PARQUET_CONVERTER, data, params_of([name] for name in wanted))
    assert made.index.fields == tuple(wanted)
    for name in wanted:
        assert made.values(name) == WIDE[name].to_pylist()
    metadata = pq.read_metadata(io.BytesIO(data))
    own = sum(
        metadata.row_group(group).column(int(name[1:])).total_compressed_size
        for group in range(metadata.num_row_groups)
        for name in wanted
    )
    assert made.fetched_bytes <= 1.1 * own
    assert len(made.fetched) < 3 + 4 * metadata.num_row_groups


def test_of_a_struct_of_bytes_and_path_only_bytes_are_fetched() -> None:
    """Paths are never looked at."""
    rows = [{"bytes": bytes([n]) * 10_000, "path": "p" * 50_000 + str(n)} for n in range(20)]
    image = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    data = parquet(pa.table({"image": image, "label": pa.array(range(20))}), compression="none", use_dictionary=False)
    made = make(PARQUET_CONVERTER, data, params_of([["image"]]))
    assert made.raw("image") == [row["bytes"] for row in rows]
    assert made.fetched_bytes < 300_000 < len(data)


def test_names_are_found_as_recipes_spell_them() -> None:
    """In lower case, with dots in them, and by any of a field's alternatives."""
    table = pa.table({"Label": [1, 2], "a.b": [3, 4], "a": [{"b": 1, "c": 1}] * 2, "jpeg": [b"x", b"y"]})
    made = make(PARQUET_CONVERTER, parquet(table), params_of([["label"], ["a.b"], ["jpg", "jpeg"]]))
    assert made.index.fields == ("label", "a.b", "jpeg")
    assert (made.values("label"), made.values("a.b")) == ([1, 2], [3, 4])


def test_columns_that_cannot_be_had_are_named() -> None:
    """One that is missing, and one that is no field, are errors that list what there is."""
    table = pa.table({"a": [1], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    data = parquet(table)
    with pytest.raises(BadRecipe, match=r"got lable.*there are a"):
        make(PARQUET_CONVERTER, data, strict_params(params_of([["lable"]])))
    with pytest.raises(Unsupported, match=r"got m.*there are a"):
        make(PARQUET_CONVERTER, data, strict_params(params_of([["m"]])))
    assert make(PARQUET_CONVERTER, data).index.fields == ("a",)
    both = parquet(pa.table([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "A", "b"]))
    with pytest.raises(BadShard, match="'A' and 'a'"):
        make(PARQUET_CONVERTER, both, params_of([["a"]]))
    assert make(PARQUET_CONVERTER, both, params_of([["b"]])).values("b") == [3]


def test_files_without_rows() -> None:
    """No rows, with row groups and without, are a table of none."""
    schema = pa.schema([("a", pa.int32()), ("t", pa.string()), ("l", pa.list_(pa.int8()))])
    for table in (schema.empty_table(), pa.table({"a": pa.array([], pa.int32())})):
        made = make(PARQUET_CONVERTER, parquet(table))
        assert made.index.sample_count == 0
        assert made.index.fields == tuple(table.column_names)


def test_decimals_beyond_64_bits_are_refused() -> None:
    """They are no int64; those that fit are."""
    fits = pa.array([decimal.Decimal((1 << 63) - 1), None], pa.decimal128(38, 0))
    assert make(PARQUET_CONVERTER, parquet(pa.table({"d": fits}))).values("d") == [(1 << 63) - 1, None]
    wide = pa.array([decimal.Decimal(1 << 63)], pa.decimal128(38, 0))
    with pytest.raises(BadShard, match="64 bits in column 'd'"):
        make(PARQUET_CONVERTER, parquet(pa.table({"d": wide})))


def test_more_than_there_is_room_for_is_refused() -> None:
    """A small file that becomes a large table ends at the limit."""
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 100_000]))
    data = parquet(pa.table({"w": words}))
    assert len(data) < 200_000
    with pytest.raises(BadShard):
        make(PARQUET_CONVERTER, data, limit_bytes=32 << 20)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1\0\0\0\0PAR1", b"x" * 100, b"PAR1" + b"\xff" * 4 + b"PAR1"])
def test_other_files_are_refused(data: bytes) -> None:
    """What is no Parquet file is a BadShard."""
    with pytest.raises(BadShard):
        make(PARQUET_CONVERTER, data)


def test_an_encrypted_file_is_refused() -> None:
    """With a word why."""
    with pytest.raises(Unsupported, match="encrypted"):
        make(PARQUET_CONVERTER, b"PAR1" + bytes(20) + b"PARE")


SEEDS = [parquet(TABLE, **options) for options in OPTIONS]


def check_harmless(*files: bytes) -> None:
    """Convert in a child process: it writes tables, refuses files, or pyarrow aborts; nothing else may end it."""
    child = os.fork()
    if not child:
        faulthandler.disable()  # pytest's would print a stack for each abort
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(60)
        try:
            for data in files:
                with contextlib.suppress(BadShard, Unsupported):
                    make(PARQUET_CONVERTER, data)
        except BaseException:  # noqa: BLE001 - the parent is told by the status
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in {0, -signal.SIGABRT}


def _damaged(data: st.DataObject) -> bytes:
    whole = bytearray(data.draw(st.sampled_from(SEEDS)))
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for _ in range(data.draw(st.integers(1, 4))):
        reach = data.draw(st.sampled_from([len(whole), footer]))
        at = len(whole) - 1 - data.draw(st.integers(0, min(reach, len(whole)) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    return bytes(whole[cut:] if cut % 2 else whole)


@settings(max_examples=budget(50), deadline=None)
@given(data=st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    """A file damaged anywhere is a table within its bytes, or refused as a bad shard, or ends its worker at once."""
    check_harmless(*(_damaged(data) for _ in range(4)))  # a child process takes as long as a file


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_values_of_a_dictionary_are_measured(compression: str) -> None:
    """Rows may repeat a few large values: the mean size of those is known before rows are read."""
    words = pa.array(["x" * 1000, "y" * 3000, "x" * 1000])
    data = parquet(pa.table({"w": words, "n": pa.array([1, 2, 3])}), compression=compression, use_dictionary=["w"])
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    assert dictionary_value_bytes(memoryview(data), group.column(0)) == 2004  # and 4 bytes of length each
    assert dictionary_value_bytes(memoryview(data), group.column(1)) == 0
    for length in range(group.column(0).dictionary_page_offset + 9):
        assert dictionary_value_bytes(memoryview(data)[:length], group.column(0)) in {0, 2004}
    assert dictionary_value_bytes(memoryview(bytes(len(data))), group.column(0)) == 0
