"""What a worker may take while it makes a shard: bounded, whatever an object says of itself."""

from __future__ import annotations

import io
import resource
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.errors import BadShard, ResourceExhausted
from feedd.formats.view_file import ViewFile
from feedd.tables import arrow_columns as arrow_pieces
from feedd.tables import hdf5 as hdf5_file
from feedd.tables.arrow import ARROW_CONVERTER
from feedd.tables.arrow_columns import ColumnReader, column_encoding
from feedd.tables.hdf5 import HDF5_CONVERTER
from feedd.tables.memory import LEAST_BYTES, at_most
from feedd.tables.npz import NPZ_CONVERTER
from feedd.tables.parquet import PARQUET_CONVERTER
from tests.fakes.made import answer_to, making
from tests.fakes.making import HeldBytes, OutBytes, make
from tests.unit.tables.test_arrow import arrow

LIMIT_BYTES = 64 << 20


@dataclass
class TightOut(OutBytes):
    """A ``ShardWriter`` that says what memory there is beside it."""

    extra_bytes: int = 1 << 20


def write(form: Any, data: bytes, extra_bytes: int) -> bytes:
    """Return what a form makes of a whole object with so much memory."""
    out = TightOut(extra_bytes=extra_bytes)
    form.make(HeldBytes(len(data), (), memoryview(data)), "s3://b/shard", "", out)
    return bytes(out.written)


def test_more_than_the_room_is_refused_by_the_system() -> None:
    """An allocation beyond it is an error with what to do, and afterwards there is no limit any more."""
    with pytest.raises(ResourceExhausted, match="too little memory to convert") as told, at_most(0, "s3://b/shard"):
        np.ones(LEAST_BYTES + (64 << 20), np.uint8)
    assert told.value.object == "s3://b/shard"
    assert "smaller shards" in told.value.hint
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    with at_most(1 << 60, ""):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_one_value_of_a_dictionary_in_every_row() -> None:
    """It counts once in the file, and would be many times the memory there is: refused, not taken."""
    large, rows = "x" * (4 << 20), 2_000
    values = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array([large, *(str(n) for n in range(20_000))])
    )
    sink = io.BytesIO()
    options = {"compression": "zstd", "dictionary_pagesize_limit": 64 << 20, "data_page_size": 1 << 20}
    pq.write_table(pa.table({"a": values}), sink, **options)
    with making(sink.getvalue()) as it:
        task = it.task("parquet", "a.parquet", limit_bytes=64 << 30, memory_bytes=128 << 20)
        with pytest.raises(ResourceExhausted, match="memory"):
            answer_to(task)


@pytest.mark.slow
def test_a_dictionary_of_large_values_is_read_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count once where they lie, and are taken apart in pieces no larger than those of other columns."""
    sizes: list[int] = []
    pieces = ColumnReader.pieces

    def watched(self: ColumnReader, array: Any, memory_bytes: int) -> Any:
        sizes.append(array.nbytes)
        return pieces(self, array, memory_bytes)

    monkeypatch.setattr(ColumnReader, "pieces", watched)
    table = pa.table({"a": pa.array([str(row % 50) * 10_000 for row in range(4_000)])})
    sink = io.BytesIO()
    pq.write_table(table, sink, dictionary_pagesize_limit=64 << 20)
    made = make(PARQUET_CONVERTER, sink.getvalue(), limit_bytes=256 << 20)
    assert made.values("a")[777] == "27" * 10_000
    assert max(sizes) <= 33 << 20 < sum(sizes)


def test_runs_are_taken_apart_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value for very many rows takes no more memory than a piece; nor one within lists than the shard may."""
    monkeypatch.setattr(arrow_pieces, "_SPREAD_BYTES_MAX", 10_000)
    rows = 50_000
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([rows - 1, rows], pa.int32()), pa.array(["x" * 100, "y"]))
    how = column_encoding(runs.type)
    assert how is not None
    pieces = list(ColumnReader("a", how, "").pieces(runs, LIMIT_BYTES))
    assert max(piece.values.nbytes for piece in pieces) <= 10_000
    assert b"".join(piece.values.tobytes() for piece in pieces) == b"x" * 100 * (rows - 1) + b"y"
    numbers = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([7], pa.int64()))
    lists = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), numbers)
    how = column_encoding(lists.type)
    assert how is not None
    (piece,) = ColumnReader("a", how, "").pieces(lists, LIMIT_BYTES)
    assert piece.values.tolist() == [7] * rows
    with pytest.raises(BadShard, match="runs that expand to 400000"):
        list(ColumnReader("a", how, "").pieces(lists, 399_999))


def test_more_rows_than_any_shard_has_are_refused_first() -> None:
    """A column of nothing has no bytes that would bound it."""
    how = column_encoding(pa.null())
    assert how is not None
    with pytest.raises(BadShard, match="at most 67108864 rows"):
        next(ColumnReader("a", how, "").pieces(pa.nulls((1 << 26) + 1), LIMIT_BYTES))


def test_numbers_of_a_dictionary_are_taken_apart_together() -> None:
    """However many the dictionary has: not row by row, nor are lists of them."""
    numbers = pa.array(np.arange(1 << 20))
    picked = np.arange(0, 1 << 20, 7, dtype=np.int32)
    for values in (numbers, pa.ListArray.from_arrays(pa.array(np.arange((1 << 20) + 1, dtype=np.int32)), numbers)):
        array = pa.DictionaryArray.from_arrays(pa.array(picked), values)
        how = column_encoding(array.type)
        assert how is not None
        (piece,) = ColumnReader("a", how, "").pieces(array, LIMIT_BYTES)
        assert piece.values.tolist() == picked.tolist()


def test_lists_of_no_rows_need_no_offsets() -> None:
    """Arrow may leave their buffers out."""
    for type_ in (pa.list_(pa.int32()), pa.list_(pa.list_(pa.int32())), pa.list_(pa.list_(pa.int32(), 2))):
        inner = pa.array([], type_.value_type)
        array = pa.Array.from_buffers(type_, 0, [None, None], children=[inner])
        how = column_encoding(type_)
        assert how is not None
        (piece,) = ColumnReader("a", how, "").pieces(array, LIMIT_BYTES)
        assert (piece.values.nbytes, piece.sizes.tolist()) == (0, [])  # type: ignore[union-attr]  # it varies
    made = make(
        ARROW_CONVERTER, arrow(pa.table({"a": pa.array([[[]], [], None], pa.list_(pa.list_(pa.int32())))}), stream=True)
    )
    assert made.values("a") == [[], [], None]


def test_what_is_known_to_need_more_is_refused_before() -> None:
    """Arrays whose rows do not lie one after another are read whole."""
    sink = io.BytesIO()
    np.savez(sink, x=np.asfortranarray(np.arange(1 << 17, dtype=np.float64).reshape(-1, 2)))
    assert write(NPZ_CONVERTER, sink.getvalue(), 2 << 20)
    with pytest.raises(ResourceExhausted, match=r"2MiB of x.npy, .*got room for 1MiB"):
        write(NPZ_CONVERTER, sink.getvalue(), 1 << 20)


def test_large_chunks_of_hdf5_are_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pieces their rows are read in; where they do not fit into memory they are refused."""
    monkeypatch.setattr("feedd.tables.arrays.PIECE_BYTES", 4096)
    values = np.random.default_rng(0).integers(0, 255, (4000, 40), np.uint8)
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.create_dataset("a/b", data=values, chunks=(2000, 20), compression="gzip", maxshape=(None, 40))
    data = sink.getvalue()
    read_bytes = 0
    plain = ViewFile.readinto

    def counted(self: ViewFile, target: Any) -> int:
        nonlocal read_bytes
        count = plain(self, target)
        read_bytes += count
        return count

    monkeypatch.setattr(ViewFile, "readinto", counted)
    made = make(HDF5_CONVERTER, data)
    assert made.values("a/b") == values.tolist()
    assert read_bytes < 1.2 * len(data)
    with pytest.raises(ResourceExhausted, match=r"chunks of \(2000, 20\) of /a/b"):
        write(HDF5_CONVERTER, data, 100_000)


def test_values_of_any_length_are_read_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at a time as those before were large."""
    monkeypatch.setattr(hdf5_file, "PIECE_BYTES", 64 << 10)
    sizes: list[int] = []
    plain = hdf5_file._variable

    def watched(values: list[Any], *rest: Any) -> Any:
        sizes.append(sum(map(len, values)))
        return plain(values, *rest)

    monkeypatch.setattr(hdf5_file, "_variable", watched)
    texts = [b"x" * (row % 7) for row in range(5000)] + [b"y" * 3000] * 400
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.create_dataset("a", data=texts, dtype=h5py.string_dtype())
    assert make(HDF5_CONVERTER, sink.getvalue()).raw("a") == texts
    assert len(sizes) < 40
    assert sizes[-2] <= 64 << 10
