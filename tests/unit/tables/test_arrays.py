"""NumPy's .npz and HDF5 as forms, against what numpy and h5py wrote."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadRecipe, BadShard, Unsupported
from feedd.tables import hdf5 as hdf5_file
from feedd.tables.columns import params_of, strict_params
from feedd.tables.hdf5 import HDF5_CONVERTER
from feedd.tables.npz import NPZ_CONVERTER
from tests.budget import PATIENT_S, budget
from tests.fakes.making import make

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "x": SOURCE.random((7, 3, 2), np.float32),
    "Y": np.arange(7, dtype=np.int64),
    "big": np.arange(14, dtype=">i2").reshape(7, 2),
    "fortran": np.asfortranarray(np.arange(21, dtype=np.float64).reshape(7, 3)),
    "flag": np.arange(7) % 2 == 0,
    "half": np.arange(7, dtype=np.float16),
    "text": np.array(["a", "", "grün", "dddd", "e", "f", "g"]),
    "raw": np.array([b"a", b"", b"ccc", b"d", b"e", b"f", b"g"]),
    "day": np.array(["2024-01-01"] * 7, "datetime64[D]"),
}


def npz(arrays: dict[str, Any], *, compressed: bool = False) -> bytes:
    """Return a .npz file."""
    sink = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(sink, **arrays)
    return sink.getvalue()


def hdf5(arrays: dict[str, Any], **options: Any) -> bytes:
    """Return an HDF5 file."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                file.create_dataset(name, data=list(array), dtype=h5py.string_dtype())
            elif array.dtype.kind != "M":
                file.create_dataset(name, data=array, **options)
    return sink.getvalue()


def expected(array: Any) -> list[Any]:
    """Return what samples hold."""
    if array.dtype.kind == "M":
        return array.astype(np.int64).tolist()  # type: ignore[no-any-return]  # a list, by its shape
    if array.dtype.kind == "S":
        return [one.decode() for one in array.tolist()]
    return array.tolist()  # type: ignore[no-any-return]  # a list, by its shape


@pytest.mark.parametrize("compressed", [False, True])
def test_every_type_of_npz(compressed: bool) -> None:
    """Stored or deflated, in any order of bytes and dimensions."""
    made = make(NPZ_CONVERTER, npz(ARRAYS, compressed=compressed))
    assert made.index.fields == tuple(name.lower() for name in ARRAYS)
    for name, array in ARRAYS.items():
        assert made.values(name.lower()) == expected(array), name
    stored = dict(zip(made.index.fields, made.index.encodings, strict=True))
    assert (stored["x"], stored["big"], stored["flag"], stored["text"]) == ("float32[3,2]", "int16[2]", "bool", "text")


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip", "shuffle": True}])
def test_every_type_of_hdf5(options: dict[str, Any]) -> None:
    """Contiguous, chunked and compressed."""
    made = make(HDF5_CONVERTER, hdf5(ARRAYS, **options))
    wanted = {name for name in ARRAYS if name != "day"}
    assert set(made.index.fields) == {name.lower() for name in wanted}
    for name in wanted:
        assert made.values(name.lower()) == expected(ARRAYS[name]), name


def test_groups_and_rows_of_any_length() -> None:
    """A dataset in a group is named by its path; rows of any length are lists."""
    sink = io.BytesIO()
    rows = [[1, 2, 3], [], [4]]
    with h5py.File(sink, "w") as file:
        ids = file.create_dataset("Train/ids", (3,), h5py.vlen_dtype(np.int32))
        for number, row in enumerate(rows):
            ids[number] = np.array(row, np.int32)
        file["train2"] = file["Train"]  # the same group again
        file["Train/self"] = file["Train"]
        file.create_dataset("many", data=np.arange(300_000).reshape(3, -1), chunks=(1, 1000))
    made = make(HDF5_CONVERTER, sink.getvalue())
    assert set(made.index.fields) == {"train/ids", "many"}
    assert made.values("train/ids") == rows
    assert made.index.encoding_of(made.index.fields.index("train/ids")) == "int32[]"
    assert sum(made.values("many"), []) == list(range(300_000))  # noqa: RUF017 - three rows


def test_arrays_that_do_not_go_together_are_named() -> None:
    """All are columns of one table, or those that are wanted; scalars and objects are none."""
    arrays = {"x": np.zeros((4, 2)), "classes": np.arange(3), "n": np.int64(3)}
    for form, data in ((NPZ_CONVERTER, npz(arrays)), (HDF5_CONVERTER, hdf5({**arrays, "n": np.asarray(3)}))):
        with pytest.raises(BadRecipe, match="x of 4"):
            make(form, data)
        assert make(form, data, params_of([["x"]])).values("x") == [[0.0, 0.0]] * 4
        with pytest.raises(Unsupported, match="got n"):
            make(form, data, strict_params(params_of([["n"]])))
    objects = npz({"o": np.array([{"a": 1}], object), "x": np.zeros(1)})
    assert make(NPZ_CONVERTER, objects).index.fields == ("x",)


def test_nothing_outside_of_the_file_is_read(tmp_path: Path) -> None:
    """Links to other files, and values kept in other files, are not followed."""
    (tmp_path / "secret").write_bytes(bytes(range(8)))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(2)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
        file["soft"] = h5py.SoftLink("/x")
        file.create_dataset("outside", (2,), np.int32, external=[(str(tmp_path / "secret"), 0, 8)])
        layout = h5py.VirtualLayout((2,), np.int64)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (2,))
        file.create_virtual_dataset("virtual", layout)
    assert make(HDF5_CONVERTER, (tmp_path / "a.h5").read_bytes()).index.fields == ("x",)


def test_what_lies_in_other_files_is_refused_with_that(tmp_path: Path) -> None:
    """Where it is asked for, or where there is nothing else; what is in the file can be read all the same."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.create_dataset("outside", (2,), np.int32, external=[(str(tmp_path / "x"), 0, 8)])
        layout = h5py.VirtualLayout((2,), np.int32)
        layout[:] = h5py.VirtualSource(str(tmp_path / "y"), "x", (2,))
        file.create_virtual_dataset("Virtual", layout)
        file["deep/link"] = h5py.ExternalLink(str(tmp_path / "z"), "/x")
    for asked, why in (
        ("", "outside, whose values are in other files"),
        ("", "Virtual, a virtual dataset"),
        ("", "deep/link, a link by name"),
        (params_of([["virtual"]]), "itself: Virtual, a virtual dataset "),
        (params_of([["deep/link", "nothing"]]), "itself: deep/link, a link by name "),
    ):
        with pytest.raises(Unsupported, match="in the file itself") as caught:
            make(HDF5_CONVERTER, sink.getvalue(), asked)
        assert why in str(caught.value)
    with pytest.raises(BadRecipe, match="there are none"):
        make(HDF5_CONVERTER, sink.getvalue(), params_of([["x"]]))
    with h5py.File(sink, "a") as file:
        file["here"] = np.arange(2)
    assert make(HDF5_CONVERTER, sink.getvalue()).index.fields == ("here",)
    assert make(HDF5_CONVERTER, sink.getvalue(), params_of([["virtual", "here"]])).values("here") == [0, 1]
    with pytest.raises(Unsupported, match="Virtual"):
        make(HDF5_CONVERTER, sink.getvalue(), params_of([["here"], ["virtual"]]))


def test_more_than_there_is_room_for_is_refused() -> None:
    """Zeros compress well, and a dataset need not have been written at all."""
    with pytest.raises(BadShard):
        make(NPZ_CONVERTER, npz({"x": np.zeros((4, 1 << 20))}, compressed=True), limit_bytes=1 << 20)
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.create_dataset("x", (1 << 30, 1 << 20), np.float64, chunks=(1, 1 << 20))
    with pytest.raises(BadShard):
        make(HDF5_CONVERTER, sink.getvalue())


def test_empty_ones() -> None:
    """Arrays of no rows, and files of no arrays."""
    none = {"x": np.zeros((0, 3), np.float32)}
    for form, write in ((NPZ_CONVERTER, npz), (HDF5_CONVERTER, hdf5)):
        assert make(form, write(none)).index.sample_count == 0
        made = make(form, write({}))
        assert (made.index.sample_count, made.index.fields) == (0, ())


def test_a_wrong_checksum_is_refused() -> None:
    """A zip says what its members sum up to."""
    data = bytearray(npz({"x": np.arange(1000)}))
    data[2000] ^= 1
    with pytest.raises(BadShard, match="CRC"):
        make(NPZ_CONVERTER, bytes(data))


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"\x89HDF\r\n\x1a\n", b"x" * 3000])
def test_other_files_are_refused(data: bytes) -> None:
    """What is neither is a BadShard."""
    for form in (NPZ_CONVERTER, HDF5_CONVERTER):
        with pytest.raises(BadShard):
            make(form, data)


SEEDS = [npz(ARRAYS), npz(ARRAYS, compressed=True)]


@settings(max_examples=budget(100), deadline=None)
@given(data=st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    """A .npz damaged anywhere is a table within its bytes, or refused as a bad shard."""
    whole = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        make(NPZ_CONVERTER, bytes(whole))
    except (BadShard, BadRecipe):
        return


def test_members_that_are_no_arrays_are_left_out() -> None:
    """A zip may hold a README."""
    sink = io.BytesIO(npz({"x": np.arange(3)}))
    with zipfile.ZipFile(sink, "a") as archive:
        archive.writestr("README", "hello")
        archive.writestr("bad.npy", "hello")
    assert make(NPZ_CONVERTER, sink.getvalue()).index.fields == ("x",)


_DAMAGED = """
import random
from tests.unit.tables.test_arrays import ARRAYS, BadRecipe, BadShard, HDF5_CONVERTER, hdf5, make
source = random.Random({seed})
numbers = {{name: array for name, array in ARRAYS.items() if array.dtype.kind != "U"}}
whole = [hdf5(numbers), hdf5(numbers, chunks=True, compression="gzip")]
for _ in range({count}):
    data = bytearray(source.choice(whole))
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)
    try:
        make(HDF5_CONVERTER, bytes(data))
    except (BadShard, BadRecipe):
        pass
"""


@pytest.mark.slow
def test_no_bytes_of_hdf5_do_harm() -> None:
    """An HDF5 file damaged anywhere is a table, or refused; apart, since the library is not ours.

    Without text of any length: where its heap is damaged the library may search it for ever. That ends at the deadline
    of the worker, and then with its life.
    """
    script = _DAMAGED.format(seed=1, count=budget(400))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_name_that_is_no_text_is_spelled_out() -> None:
    """It is no reason to refuse the others, and can be asked for."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        h5py.Group(h5py.h5g.create(file.id, b"caf\xe9"))["x"] = np.arange(3)
        file["y"] = np.arange(3)
    assert make(HDF5_CONVERTER, sink.getvalue()).index.fields == ("y", "caf\\xe9/x")
    assert make(HDF5_CONVERTER, sink.getvalue(), params_of([["caf\\xe9/x"]])).values("caf\\xe9/x") == [0, 1, 2]


def test_what_is_no_string_among_strings_is_refused() -> None:
    """It is not taken for an empty one."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        dataset = file.create_dataset("a", data=["b"], dtype=h5py.string_dtype())
        column = hdf5_file._column(dataset)
        assert column is not None
        with pytest.raises(BadShard, match="expected strings in '/a', got float"):
            hdf5_file._variable([b"b", 0.5], column, "s3://b/shard")
