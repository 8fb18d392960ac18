"""Plain objects, a picture each, from S3 through a real daemon to tensors and labels."""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from feedd_client import BadRequestError, FeedDataset, FeedError, Source
from tests.budget import PATIENT_S
from tests.fakes.s3 import faults as fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

CLASSES = ("cat", "dog", "dog-house", "ape")
PER_CLASS = 30
FIELDS = {"jpg": "image", "label": "folder"}
UNHEDGED = ("fetch.hedge_share=0",)  # what is slow is asked for twice, and a test that counts can be on a slow machine


def picture(number: int) -> bytes:
    """Return a small JPEG, unlike all others."""
    pixels = np.random.default_rng(number).integers(0, 256, (9 + number % 5, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((40, 30)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path, s3: S3Server) -> Path:
    """A folder as ImageFolder wants it, and the same in the bucket."""
    for place, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for number in range(PER_CLASS):
            data = picture(place * PER_CLASS + number)
            (tmp_path / name / f"{number:03d}.jpg").write_bytes(data)
            s3.put("data", f"train/{name}/{number:03d}.jpg", data)
    return tmp_path


def image_folder(root: Path) -> list[tuple[str, np.ndarray[Any, Any], int]]:
    """Return what torchvision's ImageFolder has, in its order: classes by name, then files by name."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = []
    for number, name in enumerate(classes):
        for top, _, files in sorted(os.walk(root / name)):
            for file in sorted(files):
                with Image.open(f"{top}/{file}") as image:
                    found.append((f"{name}/{file.removesuffix('.jpg')}", np.asarray(image.convert("RGB")), number))
    return found


def dataset(daemon: Daemon, url: str = "s3://data/train/", **options: Any) -> FeedDataset:
    """Open the folder."""
    options = dict[str, Any](batch_size=16, fields=FIELDS, keys=True, copy=True) | options
    return FeedDataset(url, address=daemon.address, **options)


def samples(batches: Any) -> list[tuple[str, np.ndarray[Any, Any], int]]:
    """Return the samples of batches one by one."""
    return [
        (key, np.asarray(image), label)
        for batch in batches
        for key, image, label in zip(batch["__key__"], batch["jpg"], batch["label"].tolist(), strict=True)
    ]


def same(got: list[tuple[str, np.ndarray[Any, Any], int]], wanted: list[tuple[str, np.ndarray[Any, Any], int]]) -> None:
    """Make sure that samples are the same; pictures may differ by how their decoders round."""
    assert [(key, label) for key, _, label in got] == [(key, label) for key, _, label in wanted]
    for (_, image, _), (_, other, _) in zip(got, wanted, strict=True):
        assert image.shape == other.shape
        assert np.abs(image.astype(int) - other.astype(int)).max() <= 8


def gets(s3: S3Server) -> int:
    """Return how many objects were asked for."""
    return sum(request.op == "GET" for request in s3.requests)


def test_as_image_folder(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """Pictures, order and labels are ImageFolder's; one GET for each in the first epoch, none in the second."""
    wanted = image_folder(folder)
    daemon = daemons(settings=UNHEDGED)
    data = dataset(daemon)
    # keys sort with their slash: "dog-house/" comes before "dog/"
    by_key = sorted(wanted, key=lambda sample: f"{sample[0]}.jpg")
    same(samples(data), by_key)
    assert gets(s3) == len(wanted)
    same(samples(data), by_key)
    assert gets(s3) == len(wanted)
    local = dataset(daemon, str(folder))
    assert len(local) == -(-len(wanted) // 16)  # the listing tells
    same(samples(local), by_key)


def test_shuffled_and_resumed(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """Shuffled, each picture comes once with its label; a run that stops goes on where it was, on a new daemon too."""
    wanted = {key: label for key, _, label in image_folder(folder)}
    first = daemons(name="one")
    whole = [(key, label) for key, _, label in samples(dataset(first, shuffle=True, seed=5))]
    assert dict(whole) == wanted
    assert len(whole) == len(wanted)
    assert whole != sorted(whole)
    data = dataset(first, shuffle=True, seed=5)
    batches = iter(data)
    seen = samples(next(batches) for _ in range(3))
    state = data.state_dict()
    del batches
    fresh = dataset(daemons(name="two"), shuffle=True, seed=5)
    fresh.load_state_dict(state)
    assert [(key, label) for key, _, label in seen + samples(fresh)] == whole


def test_a_batch_waits_for_its_own_objects(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """Others of the same pack may come much later: the batch is the one it always is, read from what is here so far."""
    whole = samples(dataset(daemons(name="one"), shuffle=True, seed=5))
    last = whole[-1][0]
    s3.script("data", f"train/{last}.jpg", always=fault.late(2 * PATIENT_S))
    batches = iter(dataset(daemons(name="two"), shuffle=True, seed=5))
    began_s = time.monotonic()
    same(samples(next(batches) for _ in range(2)), whole[:32])
    assert time.monotonic() - began_s < PATIENT_S
    assert any(request.key == f"train/{last}.jpg" for request in s3.requests[-len(whole) :]), "all were asked for"


def test_a_restart_keeps_what_is_cached(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """A daemon that starts over its cache fetches no object again."""
    first = daemons(settings=UNHEDGED)
    expected = samples(dataset(first))
    first.wait_idle()  # batches need not wait for the end of their packs, and a pack without its end is not kept
    first.stop()
    count = gets(s3)
    same(samples(dataset(daemons(settings=UNHEDGED))), expected)
    assert gets(s3) == count == len(expected)


def test_labels_from_a_table(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """A table beside the data labels each picture by its path; another version of it is another dataset."""
    rows = {key: (number * 7) % 13 for number, (key, _, _) in enumerate(image_folder(folder))}
    table = "file_name,value\n" + "".join(f"{key}.jpg,{value}\n" for key, value in rows.items())
    s3.put("data", "train/labels.csv", table.encode())
    daemon = daemons()
    fields = {"jpg": "image:8x8", "value": "table:labels.csv", "label": "folder"}
    data = dataset(daemon, fields=fields)
    batches = list(data)
    got = {
        key: value for batch in batches for key, value in zip(batch["__key__"], batch["value"].tolist(), strict=True)
    }
    assert got == rows
    assert sorted({label for batch in batches for label in batch["label"].tolist()}) == [0, 1, 2, 3]
    state = data.state_dict()
    s3.put("data", "train/labels.csv", table.replace(",12\n", ",13\n").encode())
    again = dataset(daemon, fields=fields)
    again.load_state_dict(state)
    with pytest.raises(FeedError, match="fingerprint"):
        next(iter(again))
    s3.put("data", "train/labels.csv", b"file_name,value\ncat/000.jpg,1\n")
    with pytest.raises(BadRequestError, match=r"ape/000\.jpg"):
        next(iter(dataset(daemon, fields=fields)))


def test_several_objects_to_a_sample(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Objects of one name are one sample, without a word about fields; labels by folder need folders."""
    for number in range(20):
        s3.put("data", f"m/{number:03d}.jpg", picture(number))
        s3.put("data", f"m/{number:03d}.json", b'{"n": %d}' % number)
        s3.put("data", f"m/{number:03d}.txt", f"picture {number}".encode())
    s3.put("data", "m/README.md", b"hello")
    daemon = daemons()
    (batch,) = FeedDataset("s3://data/m/", batch_size=20, fields=None, address=daemon.address, copy=True)
    assert set(batch) == {"jpg", "json", "txt"}
    assert list(batch["json"]) == [{"n": number} for number in range(20)]
    assert list(batch["txt"]) == [f"picture {number}" for number in range(20)]
    with pytest.raises(BadRequestError, match="folder"):
        next(iter(dataset(daemon, "s3://data/m/")))


def test_an_object_that_is_gone_is_named(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """One object that cannot be had ends the epoch with an error that names it."""
    daemon = daemons(name="own")
    s3.script("data", "train/dog/007.jpg", always=fault.missing())
    with pytest.raises(FeedError, match=r"train/dog/007\.jpg"):
        list(dataset(daemon))
    s3.calm()
    assert len(samples(dataset(daemon))) == len(CLASSES) * PER_CLASS


def test_an_object_that_is_gone_is_left_out(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """Where bad samples are, the others come as they are, with their labels; and so does it once it is back."""
    daemon = daemons(name="own")
    s3.script("data", "train/dog/007.jpg", always=fault.missing())
    found = samples(dataset(daemon, bad_samples="skip", max_bad_samples=1))
    wanted = image_folder(folder)
    assert sorted(key for key, _, _ in found) == sorted(key for key, _, _ in wanted if key != "dog/007")
    assert {key: label for key, _, label in found}.items() <= {key: label for key, _, label in wanted}.items()
    s3.calm()
    assert len(samples(dataset(daemon, bad_samples="error"))) == len(wanted)


def test_folders_are_mixed(s3: S3Server, folder: Path, daemons: Callable[..., Daemon]) -> None:
    """Two folders mix without an index, for a listing tells how many they are; a class has one number in both."""
    for number in range(40):
        s3.put("data", f"more/{'xy'[number % 2]}/{number:03d}.jpg", picture(1000 + number))
    daemon = daemons()
    sources = [Source("s3://data/train/", weight=3), Source("s3://data/more/", weight=1)]
    options = dict[str, Any](batch_size=16, fields={"jpg": "image:8x8", "label": "folder"}, keys=True, copy=True)
    batches = list(FeedDataset(sources, shuffle=True, address=daemon.address, **options))
    pairs = [pair for batch in batches for pair in zip(batch["__key__"], batch["label"].tolist(), strict=True)]
    numbers = {name: number for number, name in enumerate(sorted([*CLASSES, "x", "y"]))}
    assert pairs
    assert all(numbers[key.partition("/")[0]] == label for key, label in pairs)
    assert sum(key[0] in "xy" for key, _ in pairs) * 4 == len(pairs)


def test_large_arrays_are_what_was_stored(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Arrays of megabytes, which a sandboxed worker copies inside the kernel, and one that it has to turn."""
    arrays = [np.random.default_rng(number).integers(0, 256, (3, 1024, 1024), np.uint8) for number in range(3)]
    for number, array in enumerate(arrays):
        file = io.BytesIO()
        np.save(file, np.asfortranarray(array) if number == 1 else array)
        s3.put("data", f"v/{number}.npy", file.getvalue())
    fields = {"npy": "npy:uint8:3,1024,1024"}
    (batch,) = FeedDataset("s3://data/v/", batch_size=3, fields=fields, copy=True, address=daemons().address)
    assert (np.asarray(batch["npy"]) == arrays).all()
