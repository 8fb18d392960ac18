"""Shards without samples tell nothing: where the first ones of an order are empty, what is delivered is the same."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from feedd.values import Cursor, FieldKind
from tests.fakes.feeding import batches, feeding
from tests.fakes.recordio import image_record, recordio
from tests.fakes.tars import jpeg, tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.unit.formats.test_mds import mds
from tests.unit.formats.test_strided import safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feeding import Taken

POLICIES = ("skip", "replace", "quarantine")


def parquet(values: list[int]) -> bytes:
    """Return a Parquet file of a column of whole numbers and one of text."""
    sink = io.BytesIO()
    pq.write_table(_table(values), sink)
    return sink.getvalue()


def arrow(values: list[int]) -> bytes:
    """Return the same as a stream of Arrow."""
    sink = io.BytesIO()
    with ipc.new_stream(sink, _table(values).schema) as writer:
        writer.write_table(_table(values))
    return sink.getvalue()


def feathered(values: list[int]) -> bytes:
    """Return the same as a Feather file."""
    sink = io.BytesIO()
    feather.write_feather(_table(values), sink)
    return sink.getvalue()


def npz(values: list[int], name: str = "a") -> bytes:
    """Return an array of whole numbers in a .npz."""
    sink = io.BytesIO()
    arrays: dict[str, Any] = {name: np.array(values, np.int64)}
    np.savez(sink, **arrays)
    return sink.getvalue()


def hdf5(values: list[int], name: str = "a") -> bytes:
    """Return the same as HDF5."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file[name] = np.array(values, np.int64)
    return sink.getvalue()


def _table(values: list[int]) -> Any:
    return pa.table({"a": pa.array(values, pa.int64()), "s": pa.array([str(one) for one in values], pa.string())})


@dataclass(frozen=True)
class Case:
    """A format: the end of a name, a shard without samples, one of three, and the field that tells them apart."""

    ending: str
    empty: bytes
    full: bytes
    field: tuple[str, str]


NUMBERS = [7, 8, 9]
IMAGE = jpeg(np.zeros((8, 8, 3), np.uint8))
TEXT = "".join(f"{one}\n" for one in NUMBERS).encode()
CASES = {
    "tar": Case(".tar", bytes(1024), tar_bytes([(str(n), {"cls": b"%d" % n}) for n in NUMBERS]), ("cls", "int")),
    "parquet": Case(".parquet", parquet([]), parquet(NUMBERS), ("a", "int")),
    "arrow": Case(".arrow", arrow([]), arrow(NUMBERS), ("a", "int")),
    "feather": Case(".feather", feathered([]), feathered(NUMBERS), ("a", "int")),
    "csv": Case(".csv", b"a,s\n", b"a,s\n7,x\n8,y\n9,z\n", ("a", "int")),
    "csv of nothing": Case(".csv", b"", b"a,s\n7,x\n8,y\n9,z\n", ("a", "int")),
    "tsv": Case(".tsv", b"a\ts\n", b"a\ts\n7\tx\n8\ty\n9\tz\n", ("a", "int")),
    "npz": Case(".npz", npz([]), npz(NUMBERS), ("a", "int")),
    "hdf5": Case(".h5", hdf5([]), hdf5(NUMBERS), ("a", "int")),
    "tfrecord": Case(".tfrecord", b"", tfrecord(*(example(a=[n]) for n in NUMBERS)), ("a", "int")),
    "mds": Case(
        ".mds",
        mds({"a": "int"}, []),
        mds({"a": "int"}, [{"a": n.to_bytes(8, "little")} for n in NUMBERS]),
        ("a", "int"),
    ),
    "recordio": Case(
        ".rec",
        b"",
        recordio(*(image_record(IMAGE, [float(n)], n) for n in NUMBERS)),
        ("label", "float"),
    ),
    "text": Case(".txt", b"", TEXT, ("text", "str")),
    "jsonl": Case(".jsonl", b"\n\n", TEXT, ("json", "json")),
    "safetensors": Case(
        ".safetensors",
        safetensors({"a": np.zeros(0, np.int64)}),
        safetensors({"a": np.array(NUMBERS, np.int64)}),
        ("a", "int"),
    ),
}


def values(made: list[Taken], name: str) -> list[Any]:
    """Return what a field holds, of all rows in order."""
    found: list[Any] = []
    for one in made:
        spec = next(spec for spec in one.specs if spec.name == name)
        if spec.kind is FieldKind.RAGGED:
            region = one.ready.regions[one.specs.index(spec)]
            data = one.data[region.values_at : region.values_at + region.values_bytes]
            found += np.frombuffer(data, spec.dtype).reshape(max(1, one.ready.rows), -1)[: one.ready.rows].tolist()
        else:
            found += one.rows(name) if spec.kind is FieldKind.DENSE else one.texts(name)
    return found


def number(value: Any) -> int:
    """Return what a value of any of the cases says."""
    return int(value[0] if isinstance(value, list) else value)


def _cases() -> list[Any]:
    """Return each format under one policy, and the first under all; none is bad here, so that all do the same."""
    first, *others = CASES
    cases: list[Any] = [(name, "error") for name in CASES]
    cases += [pytest.param(first, policy, marks=pytest.mark.slow) for policy in POLICIES]
    return cases + [pytest.param(name, policy, marks=pytest.mark.nightly) for name in others for policy in POLICIES]


@pytest.mark.parametrize(("name", "policy"), _cases())
async def test_empty_first_shards_change_nothing(tmp_path: Path, name: str, policy: str) -> None:
    """Every sample comes, and none is bad: fields named or not, in order or in any other."""
    case = CASES[name]
    async with feeding(tmp_path) as rig:
        for shard, data in enumerate((case.empty, case.empty, case.full, case.empty, case.full)):
            rig.store.put(f"train/{shard}{case.ending}", data)
        for fields in ((case.field,), ()):
            for seed in range(4):
                session = await rig.open(
                    fields=fields,
                    bad_samples=policy,
                    bad_samples_max=9,
                    shuffle=seed > 0,
                    seed=seed,
                    window_shards=1,
                )
                made = await batches(session, Cursor())
                assert sum(one.ready.bad_samples for one in made) == 0
                assert sorted(map(number, values(made, case.field[0]))) == sorted(NUMBERS * 2), (fields, seed)
                await rig.close(session)
