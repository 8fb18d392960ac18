"""What an object says of its columns without being fetched, and objects that lack columns that others have."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from feedd.errors import BadRecipe, BadShard, ResourceExhausted
from feedd.tables.arrow import ARROW_CONVERTER
from feedd.tables.columns import head_params, params_of, strict_params
from feedd.tables.delimited import CSV_CONVERTER, TSV_CONVERTER
from feedd.tables.hdf5 import HDF5_CONVERTER
from feedd.tables.npz import NPZ_CONVERTER
from feedd.tables.parquet import PARQUET_CONVERTER
from tests.budget import budget
from tests.fakes.making import make
from tests.unit.tables.test_arrays import hdf5, npz

if TYPE_CHECKING:
    from feedd.protocols import ShardConverter

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used

ROWS = 300_000  # far more than a head
WAYS = ("parquet", "stream", "file", "compressed")


@functools.cache
def table_of(rows: int) -> Any:
    """Return a table with a column of each kind."""
    pairs = np.random.default_rng(1).random((rows, 2)).tolist()
    return pa.table(
        {
            "n": np.arange(rows),
            "x": np.random.default_rng(0).random(rows),
            "text": [f"text {n}" for n in range(rows)],
            "list": pa.array(pairs, pa.list_(pa.float32(), 2)),
            "map": pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        }
    )


def written(table: Any, way: str) -> tuple[ShardConverter, bytes]:
    """Return a table in a file, and the form that reads it."""
    sink = io.BytesIO()
    if way == "parquet":
        pq.write_table(table, sink)
        return PARQUET_CONVERTER, sink.getvalue()
    options = ipc.IpcWriteOptions(compression="zstd" if way == "compressed" else None)
    with (ipc.new_stream if way == "stream" else ipc.new_file)(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return ARROW_CONVERTER, sink.getvalue()


@pytest.mark.parametrize("way", WAYS)
def test_a_head_tells_columns_and_that_there_are_rows(way: str) -> None:
    """With a small part of the object, the same names and ways of storing as the whole; rows only where it has some."""
    form, data = written(table_of(ROWS), way)
    whole, head = make(form, data).index, make(form, data, head_params(""))
    assert (head.index.fields, head.index.encodings) == (whole.fields, whole.encodings)
    assert (head.index.sample_count, head.index.sizes.tolist()) == (1, [[-1]] * 4)
    assert head.fetched_bytes <= 1 << 20 < len(data)
    some = make(form, data, head_params(params_of([["text"], ["list"], ["nothing"]])))
    assert some.index.fields == ("text", "list")
    form, data = written(table_of(ROWS).slice(0, 0), way)
    empty = make(form, data, head_params("")).index
    assert (empty.fields, empty.encodings, empty.sample_count) == (whole.fields, whole.encodings, 0)


@pytest.mark.slow
def test_the_head_of_text_is_its_first_rows() -> None:
    """Whole ones, a line feed within quotes is none of their ends; where no row ends in it, all of the object."""
    rows = b'x,"a\nb"\n' * (2 << 20)
    made = make(CSV_CONVERTER, b"n,t\n" + rows, head_params(params_of([["t"]])))
    assert made.fetched_bytes == 8 << 20 < len(rows)
    assert made.index.fields == ("t",)
    assert set(made.values("t")) == {"a\nb"}
    long = b"n\tt\n1\t" + b"y" * (9 << 20) + b"\n"
    made = make(TSV_CONVERTER, long, head_params(""))
    assert (made.fetched_bytes, made.index.sample_count) == (len(long), 1)
    assert make(CSV_CONVERTER, b"n,t\n", head_params("")).index.sample_count == 0


@pytest.mark.parametrize("way", [*WAYS, "csv", "npz", "hdf5"])
def test_rows_without_a_wanted_column_keep_their_places(way: str) -> None:
    """As many rows as there are lack it, beside others or alone; who asks strictly is told what there is."""
    few = table_of(3)
    form: ShardConverter
    if way == "csv":
        form, data = CSV_CONVERTER, b"n,x\n0,0.5\n1,0.5\n2,0.5\n"
    elif way in {"npz", "hdf5"}:
        arrays = {"n": np.arange(3), "x": np.zeros((3, 2))}
        form, data = (NPZ_CONVERTER, npz(arrays)) if way == "npz" else (HDF5_CONVERTER, hdf5(arrays))
    else:
        form, data = written(few, way)
    for asked, fields in (([["n"], ["other"]], ("n",)), ([["other"]], ())):
        made = make(form, data, params_of(asked)).index
        assert (made.fields, made.sample_count) == (fields, 3)
        with pytest.raises(BadRecipe, match="expected the name of a column, got other") as told:
            make(form, data, strict_params(params_of(asked)))
        assert "there are n, x" in told.value.hint
    if way in WAYS:
        assert make(form, data, params_of([["map"]])).index.sample_count == 3


def test_arrays_of_which_nothing_tells_how_many_samples_they_are() -> None:
    """Where none of those that are there is wanted, and they do not go together."""
    for form, data in ((NPZ_CONVERTER, npz), (HDF5_CONVERTER, hdf5)):
        with pytest.raises(BadRecipe, match="n of 3, x of 2"):
            make(form, data({"n": np.arange(3), "x": np.zeros(2)}), params_of([["other"]]))


SMALL = {way: written(table_of(5), way) for way in WAYS}


@settings(max_examples=budget(60), deadline=None)
@given(
    st.sampled_from(("stream", "file", "compressed")),
    st.integers(0, 4000),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=4),
)
def test_no_first_bytes_do_harm(way: str, cut: int, edits: list[tuple[int, int]]) -> None:
    """Cut and changed ones tell columns, or are refused; by the system where they say they are vast."""
    form, data = SMALL[way]
    bytes_ = bytearray(data[: len(data) - cut] if cut < len(data) else b"")
    for at, value in edits:
        if at < len(bytes_):
            bytes_[at] = value
    try:
        made = make(form, bytes(bytes_), head_params(""))
    except (BadShard, ResourceExhausted):
        return
    assert made.index.sample_count in {0, 1}
