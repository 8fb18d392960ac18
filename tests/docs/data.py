"""The data that the documents speak of, in the bucket ``my-bucket``: small, and of the fields that the blocks name."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import torch

from tests.docs.pictures import CLASSES, folder_files, picture
from tests.e2e.shards import tar
from tests.fakes.files import npy, parquet_of
from tests.fakes.megatron import megatron
from tests.fakes.recordio import Record, recordio
from tests.fakes.sounds import sines, sound
from tests.fakes.tfrecords import example, tfrecord
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

BUCKET: Final = "my-bucket"
SAMPLES: Final = 24
"""Of each dataset of pictures."""
_SHARDS: Final = 8
WORDS: Final = ("the", "cat", "saw", "dog")
_WRITTEN: Final = ROOT / "tests" / "fixtures" / "guides"


def _tars(prefix: str, make: Callable[[int], Mapping[str, bytes]], count: int = SAMPLES) -> Iterator[tuple[str, bytes]]:
    """Yield shards of samples, with names that sort."""
    for shard in range(_SHARDS):
        numbers = range(shard, count, _SHARDS)
        yield f"{prefix}{shard:06d}.tar", tar([(f"{number:05d}", make(number)) for number in numbers])


def _sample(number: int) -> dict[str, bytes]:
    return {"jpg": picture(number), "cls": str(number % 10).encode()}


def _pair(number: int) -> dict[str, bytes]:
    document = json.dumps({"score": number / SAMPLES}).encode()
    return _sample(number) | {"txt": f"picture {number}".encode(), "json": document}


def _clip(number: int) -> dict[str, bytes]:
    return _sample(number) | {"wav": sound(sines(800, 16_000, 440), 16_000)}


def _photo(number: int) -> dict[str, bytes]:
    names = {"jpg": "picture", "cls": "num"}
    sample = {name: _sample(number)[name] for name in names}
    return sample | {other: sample[name] for name, other in names.items()}


def _arrays(number: int) -> dict[str, bytes]:
    return {"pixels": npy(np.full((3, 64, 64), number, np.float32)), "labels": str(number).encode()}


def _room(number: int) -> dict[str, bytes]:
    height, width = 2 + number % 3, 4
    depths = np.arange(height * width, dtype="<u2")
    head = np.asarray([height, width], "<u4")
    return {"depth": head.tobytes() + depths.tobytes(), "jpg": picture(number)}


def _record(number: int) -> bytes:
    record = Record()
    record.features["values"].float32tensor.values.extend([number / 8] * 784)
    record.label["values"].float32tensor.values.append(number)
    encoded: bytes = record.SerializeToString()
    return encoded


def _shards() -> Iterator[tuple[str, bytes]]:
    yield from _tars("train/", _sample)
    yield from _tars("pairs/", _pair)
    yield from _tars("clips/", _clip)
    for name, make in (("web", _sample), ("photos", _photo)):
        yield from _tars(f"{name}/", make)
        sizes = {f"{shard:06d}.tar": SAMPLES // _SHARDS for shard in range(_SHARDS)}
        yield f"{name}/sizes.json", json.dumps(sizes).encode()
    yield from _tars("arrays/", _arrays)
    yield from _tars("rooms/", _room)
    yield from ((f"{key}.gz", gzip.compress(data)) for key, data in _tars("t/", _sample, 16))
    names = [{"prefix": f"s3://{BUCKET}/train/"}, "000000.tar", "000003.tar", "000007.tar"]
    yield "run-7.manifest", json.dumps(names).encode()
    lines = [
        {
            "source-ref": f"s3://{BUCKET}/dogs/{CLASSES[number % len(CLASSES)]}/{number:05d}.jpg",
            "species": number,
            "species-metadata": {"class-name": CLASSES[number % len(CLASSES)], "confidence": number / SAMPLES},
        }
        for number in range(SAMPLES)
    ]
    yield "species.manifest", "\n".join(map(json.dumps, lines)).encode()


def _folders() -> Iterator[tuple[str, bytes]]:
    for key, data in folder_files(SAMPLES):
        yield key, data
        if key.startswith("imagenet/train/"):
            yield key.replace("imagenet/train/", "dogs/").replace(".JPEG", ".jpg"), data
    names = [f"{CLASSES[number % len(CLASSES)]}/{number:05d}.jpg" for number in range(SAMPLES)]
    rows = [f"{name},{number}" for number, name in enumerate(names)]
    yield "dogs/labels.csv", "\n".join(["file_name,label", *rows]).encode()
    yield "meta/labels.csv", "\n".join(["file_name,breed", *rows]).encode()


def _tables() -> Iterator[tuple[str, bytes]]:
    numbers = np.arange(64)
    ids = [[*range(8 + number % 200)] for number in numbers]
    score = 0.4 + numbers / 100
    yield "text/0.parquet", parquet_of(ids=pa.array(ids, pa.list_(pa.int32())), score=score)
    for part in range(2):
        yield f"job/part-{part:05d}", parquet_of(user=numbers)
        tags = pa.array([[1, 2]] * 64, pa.list_(pa.int32()))
        yield f"clicks/{part}.parquet", parquet_of(user=numbers, price=numbers / 4, tags=tags)
    yield "old/0", gzip.compress(tfrecord(*(example(label=[number]) for number in range(64))))
    out = io.BytesIO()
    np.savez(out, x=np.zeros((64, 768), np.float32), y=numbers)
    yield "features/0.npz", out.getvalue()
    yield "mnist/train/0", recordio(*map(_record, range(64)))


def _tokens() -> Iterator[tuple[str, bytes]]:
    ids = np.arange(40 * 2049, dtype=np.uint16).tobytes()
    yield "tokens/0.bin", ids
    yield "owt/train.bin", ids
    yield "owt/val.bin", ids[: 4098 * 2]
    index, tokens = megatron([[*range(20 + number)] for number in range(80)], "uint16")
    yield "corpus/part-0_text_document.idx", index
    yield "corpus/part-0_text_document.bin", tokens
    lines = [{"text": "the cat saw the dog", "meta": {"score": number / 64}} for number in range(64)]
    yield "lines/0.jsonl", "\n".join(map(json.dumps, lines)).encode()


def _written() -> Iterator[tuple[str, bytes]]:
    """Yield what the peers have written with ``tests.docs.write_peer``."""
    for guide in sorted(_WRITTEN.iterdir()):
        for file in sorted(file for file in guide.rglob("*") if file.is_file()):
            yield str(file.relative_to(guide)), file.read_bytes()


def _models() -> Iterator[tuple[str, bytes]]:
    out = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, out)
    yield "models/model.pt", out.getvalue()


def objects() -> Iterator[tuple[str, bytes]]:
    """Yield key and content of every object."""
    for some in (_shards, _folders, _tables, _tokens, _models, _written):
        yield from some()
