"""Arrow IPC as a form, against what was written."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from feedd.errors import BadRecipe, BadShard, ResourceExhausted
from feedd.tables.arrow import ARROW_CONVERTER
from feedd.tables.columns import params_of, strict_params
from tests.budget import budget
from tests.fakes.making import make
from tests.unit.tables.test_parquet import COLUMNS, TABLE, expected


def arrow(table: Any, *, stream: bool, compression: str | None = None, batch_rows: int = 1000) -> bytes:
    """Return a file or a stream."""
    sink = io.BytesIO()
    new = ipc.new_stream if stream else ipc.new_file
    with new(sink, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue()


MORE = TABLE.append_column("view", pa.array(["a", None, "b" * 40, "", "c"], pa.string_view())).append_column(
    "runs", pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array([7, 8]))
)
WAYS: list[dict[str, Any]] = [
    {"stream": False},
    {"stream": True},
    {"stream": False, "compression": "zstd", "batch_rows": 2},
    {"stream": True, "compression": "lz4", "batch_rows": 3},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_type_is_what_was_written(way: dict[str, Any]) -> None:
    """In files and streams, compressed or not, in any batches."""
    made = make(ARROW_CONVERTER, arrow(MORE, **way))
    assert made.index.fields == tuple(MORE.column_names)
    for name in TABLE.column_names:
        assert made.values(name) == expected(name), name
    assert made.values("view") == ["a", None, "b" * 40, "", "c"]
    assert made.values("runs") == [7, 7, 8, 8, 8]


def test_a_view_of_a_missing_value_may_be_anything() -> None:
    """Arrow checks no view of a missing value, and its cast of one with a negative length ends the process."""
    column = pa.array([None, "b" * 40, "c", None, "d"], pa.string_view()).slice(1)
    valid, views, *data = column.buffers()
    rows = np.frombuffer(views, np.int32).reshape(-1, 4).copy()
    rows[[0, 3]] = [-2_883_584, 65_535, 0, 0]  # length, first bytes, buffer, offset
    column = pa.Array.from_buffers(column.type, 4, [valid, pa.py_buffer(rows), *data], offset=1)
    made = make(ARROW_CONVERTER, arrow(pa.table({"view": column}), stream=True))
    assert made.values("view") == ["b" * 40, "c", None, "d"]


def test_a_slice_is_written_as_such() -> None:
    """Offsets into buffers are kept."""
    part = MORE.slice(1, 3)
    made = make(ARROW_CONVERTER, arrow(part, stream=True))
    for name in COLUMNS:
        assert made.values(name) == expected(name)[1:4], name


def test_only_wanted_columns_become_a_table() -> None:
    """Others are not there; those that are missing are named."""
    data = arrow(MORE, stream=True)
    assert make(ARROW_CONVERTER, data, params_of([["text"], ["i8"]])).index.fields == ("i8", "text")
    with pytest.raises(BadRecipe, match=r"got nope.*there are flag, i8"):
        make(ARROW_CONVERTER, data, strict_params(params_of([["nope"]])))


def test_nothing_is_a_table_of_no_rows() -> None:
    """No batch at all, or empty ones."""
    for stream in (True, False):
        made = make(ARROW_CONVERTER, arrow(TABLE.schema.empty_table(), stream=stream))
        assert (made.index.sample_count, len(made.index.fields)) == (0, len(COLUMNS))


def test_a_dictionary_that_stands_for_too_much_is_refused() -> None:
    """Before it is taken apart."""
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 100_000]))
    with pytest.raises(BadShard):
        make(ARROW_CONVERTER, arrow(pa.table({"w": words}), stream=True, batch_rows=100_000), limit_bytes=32 << 20)


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"ARROW1\0\0" + bytes(40), b"\xff\xff\xff\xff", b"x" * 99, b"FEA1"])
def test_other_files_are_refused(data: bytes) -> None:
    """What is no Arrow IPC is a BadShard."""
    with pytest.raises(BadShard):
        make(ARROW_CONVERTER, data)


def test_a_packed_buffer_that_says_it_is_vast() -> None:
    """Its library asks for as much: the system refuses, and the error says what that can mean."""
    data = bytearray(arrow(MORE, stream=True, compression="lz4", batch_rows=3))
    at = data.index(bytes([8, 0, 0, 0, 0, 0, 0, 0]) + b'\x04"M\x18')  # its size unpacked, and LZ4's magic
    data[at + 6] = 1
    with pytest.raises(ResourceExhausted, match="too little memory to convert") as told:
        make(ARROW_CONVERTER, bytes(data))
    assert "the object is damaged" in told.value.hint


SEEDS = [arrow(MORE, **way) for way in WAYS]


@settings(max_examples=budget(200), deadline=None)
@given(data=st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    """One damaged anywhere is a table within its bytes, or refused; by the system where it says it is vast."""
    whole = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        make(ARROW_CONVERTER, bytes(whole[: data.draw(st.integers(0, 2 * len(whole)))]))
    except (BadShard, ResourceExhausted):
        return
