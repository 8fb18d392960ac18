"""``feedd peek URL``: what it says of data of several formats, what it fetches for that, and what it says of none."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyarrow as pa
import pytest

from feedd.recipe.recipe import parse_field
from tests.fakes.files import npy, parquet_of
from tests.fakes.s3.server import S3Server
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.fakes.thread_worker import cheap_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.cli.conftest import Feedd

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("first_loop", "aws_credentials")]


@pytest.fixture(autouse=True)
def _workers() -> Iterator[None]:
    with cheap_workers():
        yield


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store that the environment names, with one bucket."""
    with S3Server() as server:
        server.create_bucket("bucket")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


def _jpeg(height: int, width: int) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), 90, np.uint8))[1].tobytes()


def _tar(count: int = 3) -> bytes:
    samples = [
        (f"{n:04}", {"jpg": _jpeg(20 + n, 30), "cls": str(n).encode(), "npy": npy(np.zeros((2, 5), np.float32))})
        for n in range(count)
    ]
    return tar_bytes(samples)


def _facts(feedd: Feedd, url: object, *more: str) -> dict[str, Any]:
    outcome = feedd("peek", str(url), "--json", *more)
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


def test_a_tar_is_shown_with_its_images(feedd: Feedd, store: S3Server) -> None:
    """Shards, bytes, keys, fields, shapes and numbers are what was written, and the recipe decodes it."""
    data = _tar()
    for shard in range(2):
        store.put("bucket", f"train/{shard}.tar", data)
    found = _facts(feedd, "s3://bucket/train/", "--samples", "2")
    assert found["formats"] == {"tar": 2}
    assert (found["shards"], found["objects"], found["bytes"]) == (2, 2, 2 * len(data))
    assert found["samples_known"] is None
    assert found["recipe"] == {"jpg": "image", "cls": "int", "npy": "npy"}
    assert [sample["key"] for sample in found["samples"]] == ["0000", "0001"]
    fields = found["samples"][1]["fields"]
    assert fields["jpg"] == {"bytes": len(_jpeg(21, 30)), "shape": [21, 30, 3], "text": None, "problem": None}
    assert (fields["cls"]["text"], fields["npy"]["shape"]) == ("1", [2, 5])
    assert found["fields"][1] == {
        "name": "cls",
        "encoding": "",
        "recipe": "int",
        "with_it": 3,
        "bytes_min": 1,
        "bytes_max": 1,
    }


def test_people_read_it_in_a_few_lines(feedd: Feedd, tmp_path: Path) -> None:
    """On a terminal there are the figures, a table of fields, samples, and a line to copy."""
    (tmp_path / "0.tar").write_bytes(
        tar_bytes([("a", {"jpg": _jpeg(8, 9), "txt": b"red\x1b[31m"}), ("b", {"txt": b"x"})])
    )
    outcome = feedd("peek", f"{tmp_path}/")
    assert outcome.code == 0, outcome.err
    assert f"{tmp_path}/: tar, 1 shard, 10KiB, samples not counted yet" in outcome.out
    assert 'fields={"jpg": "image", "txt": "str"}' in outcome.out
    assert r"'a':  jpg 8x9x3, " in outcome.out
    assert r"txt 'red\x1b[31m'" in outcome.out
    assert "'b':  jpg missing   txt 'x'" in outcome.out
    assert "\x1b" not in outcome.out


def test_of_a_large_tar_only_the_head_is_fetched(feedd: Feedd, store: S3Server) -> None:
    """Some MiB of the first shard tell its fields; no other shard is read."""
    samples = [(f"{n:04}", {"bin": bytes(1 << 20), "cls": b"1"}) for n in range(24)]
    for shard in range(3):
        store.put("bucket", f"train/{shard}.tar", tar_bytes(samples))
    found = _facts(feedd, "s3://bucket/train/", "--samples", "1")
    assert found["samples"][0]["fields"]["bin"]["bytes"] == 1 << 20
    assert 0 < found["looked_at"] < 24
    reads = [one for one in store.requests if one.method == "GET" and one.key]
    assert {one.key for one in reads if one.key.endswith(".tar")} == {"train/0.tar"}
    assert int(str(store.stats()["body_bytes"])) < 8 << 20


@pytest.mark.parametrize(
    ("name", "data", "formats", "recipe", "values"),
    [
        (
            "0.parquet",
            parquet_of(text=["hello"] * 4, x=pa.array([1.5] * 4, pa.float32()), y=[7] * 4),
            "parquet",
            {"text": "str", "x": "float", "y": "int"},
            {"text": "hello", "x": "1.5", "y": "7"},
        ),
        ("0.tfrecord", tfrecord(*[example(label=[3])] * 2), "tfrecord", {"label": "array"}, {}),
        ("0.jsonl", b'{"a": 1}\n{"a": 2}\n', "jsonl", {"json": "json"}, {"json": '{"a": 1}'}),
        ("0.csv", b"name,size\nx,1\ny,2\n", "csv", {"name": "str", "size": "int"}, {"name": "x", "size": "1"}),
        ("0.tar.gz", gzip.compress(tar_bytes([("a", {"cls": b"5"})])), "tar, compressed", {"cls": "int"}, {"cls": "5"}),
    ],
    ids=["parquet", "tfrecord", "jsonl", "csv", "tar.gz"],
)
def test_other_formats(
    feedd: Feedd, tmp_path: Path, name: str, data: bytes, formats: str, recipe: dict[str, str], values: dict[str, str]
) -> None:
    """The format, a recipe that parses, and the first sample's values."""
    (tmp_path / name).write_bytes(data)
    found = _facts(feedd, f"{tmp_path}/")
    assert found["formats"] == {formats: 1}
    assert found["recipe"] == recipe
    assert {parse_field(field, how).name for field, how in recipe.items()} == set(recipe)
    assert {field: found["samples"][0]["fields"][field]["text"] for field in values} == values


def test_a_format_before_the_url_is_that_of_all_shards(feedd: Feedd, tmp_path: Path) -> None:
    """Rows of an array are samples if the URL says so; else a .npy file is one sample."""
    (tmp_path / "0.npy").write_bytes(npy(np.zeros((6, 3), np.float32)))
    assert _facts(feedd, f"{tmp_path}/")["formats"] == {"files": 1}
    found = _facts(feedd, f"npy+file://{tmp_path}/")
    assert found["formats"] == {"npy": 1}
    assert list(found["recipe"].values()) == ["tensor:float32:3"]


def test_a_folder_of_images_is_shown_as_objects(feedd: Feedd, store: S3Server) -> None:
    """Small files are counted as objects, and as samples: a listing tells those."""
    for name in ("cat/1", "cat/2", "dog/3"):
        store.put("bucket", f"train/{name}.png", cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes())
    found = _facts(feedd, "s3://bucket/train/")
    assert (found["formats"], found["objects"], found["samples_known"]) == ({"files": 1}, 3, 3)
    assert [sample["key"] for sample in found["samples"]] == ["cat/1", "cat/2", "dog/3"]
    assert found["samples"][0]["fields"]["png"]["shape"] == [4, 6, 3]


def test_spellings_of_one_thing_are_one_field(feedd: Feedd, tmp_path: Path) -> None:
    """``jpg`` and ``jpeg`` are alternatives in the line to copy, as they are if fields= is left out."""
    (tmp_path / "0.tar").write_bytes(tar_bytes([("a", {"jpg": _jpeg(4, 4)}), ("b", {"jpeg": _jpeg(4, 4)})]))
    assert _facts(feedd, f"{tmp_path}/")["recipe"] == {"jpg;jpeg": "image"}


def test_what_cannot_be_decoded_is_said(feedd: Feedd, tmp_path: Path) -> None:
    """A damaged image is a problem of one value, and not of the command."""
    (tmp_path / "0.tar").write_bytes(tar_bytes([("a", {"jpg": b"no image", "cls": b"1"})]))
    outcome = feedd("peek", f"{tmp_path}/")
    assert outcome.code == 0, outcome.err
    assert "jpg cannot be decoded: " in outcome.out


def test_no_samples_are_shown_if_none_are_wanted(feedd: Feedd, tmp_path: Path) -> None:
    """With --samples 0 a footer is enough for Parquet."""
    (tmp_path / "0.parquet").write_bytes(parquet_of(x=[1] * 9))
    found = _facts(feedd, f"{tmp_path}/", "--samples", "0")
    assert (found["samples"], found["recipe"]) == ([], {"x": "int"})


def test_a_shard_that_is_too_large_for_a_look_is_not_fetched(
    feedd: Feedd, store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns are shown, and why there are no samples."""
    monkeypatch.setattr("feedd.cli.peek._WHOLE_BYTES_MAX", 1)
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 700_000)
    store.put("bucket", "train/0.parquet", parquet_of(x=numbers))
    found = _facts(feedd, "s3://bucket/train/")
    assert (found["samples"], found["recipe"]) == ([], {"x": "int"})
    assert "needs a whole shard" in found["note"]
    assert int(str(store.stats()["body_bytes"])) < 2 << 20


def test_data_whose_fields_must_be_named_is_counted_all_the_same(feedd: Feedd, tmp_path: Path) -> None:
    """Of token files the listing is shown; the error says what to name, and the exit code is that of bad usage."""
    (tmp_path / "0.bin").write_bytes(bytes(4096))
    outcome = feedd("peek", f"{tmp_path}/")
    assert outcome.code in {1, 2}
    assert "1 shard, 4KiB" in outcome.out
    assert "feedd: error:" in outcome.err
    assert "tokens:" in outcome.err


@pytest.mark.parametrize(
    ("url", "said"),
    [("s3://bucket/nothing/", "s3://bucket/nothing/"), ("s3://no-such-bucket/train/", "no-such-bucket")],
)
def test_nothing_there_is_an_error_that_names_it(feedd: Feedd, store: S3Server, url: str, said: str) -> None:
    """An empty prefix and a bucket that does not exist are exit code 1, on one line, without a traceback."""
    outcome = feedd("peek", url)
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("feedd: error: ")
    assert said in outcome.err


def test_an_augmented_manifest(store: S3Server, feedd: Feedd) -> None:
    """Attributes are fields, decoded by the extension of their objects, or by their values in the lines."""
    for name in "ab":
        store.put("bucket", f"{name}.jpg", _jpeg(20, 30))
    lines = [
        {"source-ref": f"s3://bucket/{name}.jpg", "species": 3, "words": "some text", "boxes": {"class_id": [1]}}
        for name in "ab"
    ]
    store.put("bucket", "x.manifest", "\n".join(map(json.dumps, lines)).encode())
    facts = _facts(feedd, "augmented+s3://bucket/x.manifest")
    assert facts["formats"] == {"augmented manifest": 1}
    assert facts["recipe"] == {"species": "int", "words": "str", "boxes": "json", "source-ref": "image"}
    (key, first), _ = ((sample["key"], sample["fields"]) for sample in facts["samples"])
    assert key == "00000001"
    assert first["source-ref"]["shape"] == [20, 30, 3]
    texts = {name: first[name]["text"] for name in ("species", "words", "boxes")}
    assert texts == {"species": "3", "words": "some text", "boxes": '{"class_id": [1]}'}
