"""Shards by the libraries whose formats these are (``tests/fixtures``): every value as it was written."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.fixtures
from feedd.conversion import text_of
from feedd.dataset.sidecars import ForeignCounts, Surroundings, is_sidecar
from feedd.errors import BadRecipe, Unsupported
from feedd.formats.format_registry import format_for
from feedd.tables.registry import conversion_for
from feedd.values import ObjectRef
from tests.fakes.made import made_of
from tests.fakes.reading import read

FIXTURES = Path(tests.fixtures.__file__).parent
READ = ("litdata", "litdata_tokens", "mds", "tfrecord", "tfrecord_sequences", "webdataset")


def shards(name: str) -> dict[str, tuple[bytes, str]]:
    """Return content and format of each shard, as a listing of the folder with what lies beside it tells."""
    files = sorted(path for path in (FIXTURES / name / "data").iterdir() if not is_sidecar(path.name))
    refs = [ObjectRef("s3://b", path.name, path.stat().st_size, "tag") for path in files]
    beside = FIXTURES / name / "data" / "index.json"
    told: dict[int, str] = {}
    if beside.exists():
        claims = ForeignCounts("index.json", beside.read_bytes())
        file, around = ObjectRef("s3://b", "index.json", 1, "tag"), Surroundings(refs)
        counts = around.believed(file, claims)
        assert sorted(counts) == list(range(len(files)))
        told = around.formats(file, claims, counts.keys())
        for number, count in counts.items():
            if name != "litdata_arrow":
                assert len(read(files[number].read_bytes(), told[number], None)) == count
    return {
        path.name: (path.read_bytes(), told.get(number) or format_for(f"s3://b/{path.name}"))
        for number, path in enumerate(files)
    }


def same(got: Any, wanted: Any) -> bool:
    """Whether a decoded value is the one that was written."""
    if isinstance(wanted, dict) and "bytes" in wanted:
        return bool(got.tobytes() == base64.b64decode(wanted["bytes"]))
    if isinstance(wanted, dict) and "dtype" in wanted:
        values = np.array(wanted["values"], wanted["dtype"])
        return bool(got.dtype == values.dtype and np.array_equal(got.reshape(-1), values.reshape(-1)))
    if isinstance(wanted, float):
        return bool(got == np.float32(wanted))
    return bool(got == wanted)


def shape_of(wanted: Any) -> tuple[int, ...] | None:
    """Return the shape a value had; None: it was no array, or an empty one, of which JSON tells none."""
    if isinstance(wanted, dict) and "dtype" in wanted and np.size(wanted["values"]):
        return np.array(wanted["values"]).shape
    return None


@pytest.mark.parametrize("name", READ)
def test_every_value_is_what_was_written(name: str) -> None:
    """Each field of each sample, in order, has its value; arrays that carry their shape have it."""
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    samples = [sample for data, how in shards(name).values() for sample in read(data, how, expected["fields"])]
    assert len(samples) == len(expected["samples"])
    for got, wanted in zip(samples, expected["samples"], strict=True):
        assert got.keys() == wanted.keys()
        wrong = {field: (got[field], wanted[field]) for field in wanted if not same(got[field], wanted[field])}
        assert not wrong
        for field, how in expected["fields"].items():
            shape = shape_of(wanted[field])
            if how.startswith(("npy", "image", "tensor")) and shape is not None:
                assert got[field].shape == shape


@pytest.mark.parametrize("name", READ)
def test_without_fields_everything_that_is_no_pickle_is_read(name: str) -> None:
    """The recipes a shard suggests decode its values; one field of each."""
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    for data, how in shards(name).values():
        for sample in read(data, how):
            assert sample.keys() == expected["fields"].keys()


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_pickles_are_refused_by_name(name: str) -> None:
    """A pickled column can be had as bytes, and as nothing else; the message says what it is."""
    data, how = next(iter(shards(name).values()))
    assert bytes(read(data, how, {"object": "bytes"})[0]["object"])[:1] == b"\x80"
    with pytest.raises(BadRecipe, match="pickle"):
        read(data, how, {"object": "json"})


@pytest.mark.parametrize("how", ["br", "bz2", "gz", "snappy", "zstd"])
def test_compressed_mds_is_what_was_written(how: str) -> None:
    """In each way that MosaicML's writer has: the name tells the form, the index how many samples there are."""
    expected = json.loads((FIXTURES / "mds_packed" / "expected.json").read_text())
    folder = FIXTURES / "mds_packed" / how
    files = sorted(path for path in folder.iterdir() if not is_sidecar(path.name))
    refs = [ObjectRef("s3://b", path.name, path.stat().st_size, "tag") for path in files]
    file, claims = ObjectRef("s3://b", "index.json", 1, "tag"), (folder / "index.json").read_bytes()
    counts = Surroundings(refs).believed(file, ForeignCounts("index.json", claims))
    samples = []
    for number, path in enumerate(files):
        url = f"s3://b/{path.name}"
        assert format_for(url) == "mds"
        made, data = made_of(text_of(conversion_for(url)), path.name, path.read_bytes())
        assert made == "mds"
        held = read(data, "mds", expected["fields"])
        assert len(held) == counts[number]
        samples += held
    assert len(files) > 1
    assert [(int(one["label"]), str(one["text"])) for one in samples] == [
        (one["label"], one["text"]) for one in expected["samples"]
    ]


def test_rows_that_litdata_writes_as_arrow_are_refused() -> None:
    """Such a chunk is recognised, and the hint says how it is read."""
    data, how = next(iter(shards("litdata_arrow").values()))
    with pytest.raises(Unsupported, match="Arrow") as caught:
        read(data, how)
    assert "litdata-arrow+" in caught.value.hint


def test_fixtures_are_small() -> None:
    """Nobody minds cloning them. The guides' are whole data sets, as the other libraries' writers cut them."""
    guides = FIXTURES / "guides"
    of_guides = [path.stat().st_size for path in guides.rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file() and guides not in path.parents]
    assert max(sizes) < 50_000
    assert sum(sizes) < 1_000_000
    assert max(of_guides) < 100_000
    assert sum(of_guides) < 1_250_000
