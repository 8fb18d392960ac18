"""Runs whose batches and states are stored: the data, what is read of it, and how it is written down.

The data is built of bytes that no library's version changes, so that versions of objects, and states, stay the same.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import tests.fixtures
from feedd.dataset.index_file import INDEX_NAME, Row, render
from feedd_client import Ragged, Shuffle, Source, Topology
from tests.fakes.megatron import megatron
from tests.fakes.recordio import recordio
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from feedd_client import FeedDataset
    from tests.fakes.s3.server import S3Server

FOLDER = Path(tests.fixtures.__file__).parent
STORED = FOLDER / "runs"
COUNTS = (9, 5, 12, 7, 10, 4, 8, 11)
_SHOWN_ELEMENTS = 16  # up to so many values are stored as they are, so that a difference can be read


@dataclass(frozen=True)
class Run:
    """What is read.

    Attributes:
        url: below the bucket, or sources to mix.
        options: of the dataset.
        epochs: how many are read.
        state_at: a state is stored after so many batches of the first epoch, and resumed from; None: none is.
        pictures: fields that are compared within the tolerance of image libraries, not to the last bit.
    """

    url: Any
    options: Mapping[str, Any]
    epochs: int = 1
    state_at: int | None = None
    pictures: frozenset[str] = field(default_factory=frozenset)


def _order(url: Any = "s3://data/tars/", *, epochs: int = 2, state_at: int | None = 2, **options: Any) -> Run:
    wanted: dict[str, Any] = {"batch_size": 4, "fields": {"cls": "int"}, "shuffle": True, "seed": 7, **options}
    return Run(url, wanted, epochs, state_at)


def _ranked(node: int, local: int, nodes: int = 2, locals_: int = 2, **options: Any) -> Run:
    topology = Topology(nodes * locals_, node * locals_ + local, locals_, local, nodes, node)
    return _order("s3://data/counted/", batch_size=3, topology=topology, **options)


def _mixed(mix: str, **options: Any) -> Run:
    sources = [Source("s3://data/counted/", 0.7), Source("s3://data/others/", 0.3)]
    return _order(sources, mix=mix, batch_size=5, **options)


def _image(recipe: Any, url: str = "s3://data/pictures/", **options: Any) -> Run:
    wanted = {"batch_size": 4, "fields": {"jpg": recipe, "cls": "int"}, "seed": 3, "uneven": "allow", **options}
    return Run(url, wanted, epochs=1, pictures=frozenset() if recipe == "image:raw" else frozenset({"jpg"}))


def _format(url: str, **options: Any) -> Run:
    return Run(url, {"batch_size": 3, "fields": None, "uneven": "allow", **options})


def _transformed(*transforms: Any) -> dict[str, Any]:
    return {"decode": "image", "mode": "rgb", "transforms": [*transforms]}


_JITTER = {"op": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
_NORMALIZE = {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "dtype": "float32"}
_TOKENS: dict[str, Any] = {"tokens": "tokens:uint16:17"}
_PACK = {"npy": {"decode": "npy", "pack": {"length": 16, "how": "bins", "fill": 0}}}

RUNS: dict[str, Run] = {
    "order: as listed": _order(shuffle=False),
    "order: shuffled": _order(epochs=3),
    "order: another seed": _order(seed=8),
    "order: windows of two shards": _order(shuffle=Shuffle(window_shards=2)),
    "order: windows of bytes": _order(shuffle=Shuffle(window_bytes=40_000)),
    "order: buckets": _order(shuffle=Shuffle(bucket_by="bin"), fields={"cls": "int", "bin": "bytes"}),
    "order: the rest dropped": _order("s3://data/counted/", uneven="drop"),
    "order: sample by sample": _order(batch_size=None),
    "order: partitions": _order(partitions=4, uneven="allow"),
    "order: so many steps": _order(steps=5),
    "ranks: key": _ranked(1, 1, sharding="key", uneven="drop"),
    "ranks: size": _ranked(1, 0, sharding="size", uneven="pad"),
    "ranks: sample": _ranked(0, 1, sharding="sample", uneven="repeat"),
    "ranks: replicated": _ranked(1, 1, sharding="replicated", uneven="drop"),
    "ranks: three nodes": _ranked(2, 0, nodes=3, locals_=1, uneven="allow"),
    "mix: stratified": _mixed("stratified"),
    "mix: sample": _mixed("sample"),
    "mix: batch": _mixed("batch"),
    "mix: batch-sample": _mixed("batch-sample"),
    "batches: padded": _order(fields={"cls": "int", "bin": {"decode": "bytes", "pad": {"to": [16, 64, 99]}}}),
    "batches: packed rows": _order(fields=_PACK),
    "batches: filtered": _order(filter={"field": "cls", "min": 2000, "max": 5003}),
    "batches: keys": _order(keys=True, epochs=1),
    "batches: text and arrays": _order(fields={"txt": "str", "npy": "npy", "json": "json", "cls": "float"}, epochs=1),
    "tokens: windows": _order("s3://data/tokens/", fields=_TOKENS),
    "tokens: as they lie": _order("s3://data/tokens/", fields=_TOKENS, shuffle=False, epochs=1),
    "tokens: Megatron": _order("s3://data/megatron/", fields=_TOKENS),
    "objects: classes": _order("s3://data/objects/", fields={"jpg": "image:raw", "cls": "folder"}),
    "image: as it is": _image("image", "s3://data/pictures/0.tar"),
    "image: cut": _image("image:24x20"),
    "image: random": _image("image:24x24:random", shuffle=True),
    "image: encoded": _image("image:raw"),
    "image: turned upright": _image({"decode": "image", "orient": True, "size": [24, 20]}),
    "image: gray": _image({"decode": "image", "mode": "gray", "size": [24, 20]}),
    "image: crops and jitter": _image(
        _transformed({"op": "random_crop", "size": 20, "padding": 2}, "horizontal_flip", _JITTER, "channels_first")
    ),
    "image: random augmentation": _image(
        _transformed({"op": "resize", "size": [24, 24]}, {"op": "rand_augment", "count": 2, "magnitude": 9})
    ),
    "image: normalised": _image(
        _transformed({"op": "resize", "size": 26}, {"op": "center_crop", "size": 24}, _NORMALIZE, "channels_first"),
        "s3://data/pictures/0.tar",
    ),
    "image: other formats": _image(
        {"decode": "image", "from": ["png", "webp", "tif", "bmp"], "mode": "rgb", "size": [16, 16]},
        "s3://data/kinds/",
    ),
    "format: WebDataset": _format("s3://data/webdataset/", fields={"cls": "int", "txt": "str"}),
    "format: MDS": _format("s3://data/mds/"),
    "format: compressed MDS": _format("s3://data/mds-zstd/"),
    "format: LitData": _format("s3://data/litdata/"),
    "format: tokens of LitData": _format("s3://data/litdata_tokens/"),
    "format: TFRecord": _format("s3://data/tfrecord/"),
    "format: sequences of TFRecord": _format("s3://data/tfrecord_sequences/"),
    "format: RecordIO": _format("s3://data/recordio/"),
    "format: CSV": _format("s3://data/csv/", shuffle=True),
    "format: JSON Lines": _format("s3://data/jsonl/", shuffle=True),
    "format: Parquet": _format("s3://data/parquet/", shuffle=True),
    "format: NumPy": _format("s3://data/npy/", shuffle=True),
}


def fill(s3: S3Server, run: Run) -> None:
    """Store the data that a run reads."""
    urls = [run.url] if isinstance(run.url, str) else [source.url for source in run.url]
    for folder in {url.removeprefix("s3://data/").partition("/")[0] for url in urls}:
        rows = []
        for key, data in _objects().items():
            if key.startswith(f"{folder}/"):
                version = s3.put("data", key, data)
                rows.append(Row(key.removeprefix(f"{folder}/"), len(data), version, _tar_count(key)))
        assert rows, folder
        if folder in {"counted", "others"}:
            s3.put("data", f"{folder}/{INDEX_NAME}", render(rows))


def _tar_count(key: str) -> int:
    folder, _, name = key.partition("/")
    counts = {"counted": COUNTS, "others": COUNTS[3:7]}.get(folder)
    return counts[int(name.removesuffix(".tar"))] if counts else 0


@functools.cache
def _objects() -> dict[str, bytes]:
    """Return the data of all runs by key."""
    found: dict[str, bytes] = {}
    for folder, offset, counts in (("tars", 0, COUNTS), ("counted", 0, COUNTS), ("others", 100_000, COUNTS[3:7])):
        for shard, count in enumerate(counts):
            found[f"{folder}/{shard:03}.tar"] = _tar(offset + shard * 1000, count)
    for shard in range(3):
        found[f"tokens/{shard}.bin"] = (np.arange(500 + 70 * shard) + 1000 * shard).astype("<u2").tobytes()
    found["megatron/0.idx"], found["megatron/0.bin"] = megatron(
        [range(100), range(100, 250), range(250, 330)], "uint16"
    )
    for number in range(23):
        picture = (STORED / "pictures" / f"{number % 8}.jpg").read_bytes()
        found[f"objects/{'cab'[number % 3]}/{number:03}.jpg"] = picture
    found |= _pictures() | _tables()
    for name in ("webdataset", "mds", "litdata", "litdata_tokens", "tfrecord", "tfrecord_sequences"):
        found |= _folder(FOLDER / name / "data", name)
    return found | _folder(FOLDER / "mds_packed" / "zstd", "mds-zstd")


def _folder(folder: Path, name: str) -> dict[str, bytes]:
    return {f"{name}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


def _tar(first: int, count: int) -> bytes:
    samples = []
    for number in range(first, first + count):
        file = io.BytesIO()
        np.save(file, np.arange(number % 9 + 1, dtype=np.int32))
        samples.append(
            (
                f"{number:06}",
                {
                    "cls": b"%d" % number,
                    "bin": bytes([number % 251]) * (number * 37 % 91 + 1),
                    "txt": f"grün {number}".encode(),
                    "json": json.dumps({"n": number}).encode(),
                    "npy": file.getvalue(),
                },
            )
        )
    return tar_bytes(samples)


def _pictures() -> dict[str, bytes]:
    pictures = STORED / "pictures"
    names = [*(f"{number}.jpg" for number in range(8)), "turned.jpg", "gray.jpg"]
    samples = [(f"{n:02}", {"jpg": (pictures / name).read_bytes(), "cls": b"%d" % n}) for n, name in enumerate(names)]
    others = ("plain.png", "alpha.png", "palette.png", "plain.webp", "plain.tif", "plain.bmp")
    kinds = [
        (f"{n:02}", {name.rpartition(".")[2]: (pictures / name).read_bytes(), "cls": b"%d" % n})
        for n, name in enumerate(others)
    ]
    shards = {f"pictures/{shard}.tar": tar_bytes(samples[shard::2]) for shard in range(2)}
    return {**shards, "kinds/0.tar": tar_bytes(kinds)}


def _tables() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for shard in range(2):
        numbers = range(shard * 10, shard * 10 + 7)
        rows = [f"{n},{n / 4},name {n}\n" for n in numbers]
        found[f"csv/{shard}.csv"] = b"id,weight,name\n" + "".join(rows).encode()
        lines = [json.dumps({"id": n, "tags": ["x"] * (n % 3)}) + "\n" for n in numbers]
        found[f"jsonl/{shard}.jsonl"] = "".join(lines).encode()
        found[f"recordio/{shard}.rec"] = recordio(*(b"record %d" % n for n in numbers))
        sink = io.BytesIO()
        table = {"id": [*numbers], "weight": [n / 4 for n in numbers], "name": [f"name {n}" for n in numbers]}
        pq.write_table(pa.table(table), sink)
        found[f"parquet/{shard}.parquet"] = sink.getvalue()
        file = io.BytesIO()
        np.save(file, np.arange(7 * 6, dtype=np.float32).reshape(7, 2, 3) + 100 * shard)
        found[f"npy/{shard}.npy"] = file.getvalue()
    return found


def read(dataset: FeedDataset, run: Run) -> tuple[list[list[dict[str, Any]]], dict[str, Any] | None]:
    """Return what each batch of each epoch holds, as JSON says it, and the state that is to be stored."""
    epochs: list[list[dict[str, Any]]] = []
    state = None
    for _ in range(run.epochs):
        batches: list[dict[str, Any]] = []
        epochs.append(batches)
        for batch in dataset:
            batches.append({name: told(value, exact=name not in run.pictures) for name, value in batch.items()})
            if len(epochs) == 1 and len(batches) == run.state_at:
                state = json.loads(json.dumps(dataset.state_dict()))
    return epochs, state


def told(value: Any, *, exact: bool) -> Any:
    """Return a field of a batch as JSON says it; a large one by its digest, one of pictures by all its numbers."""
    if isinstance(value, Ragged):
        parts = {"values": told(value.values, exact=exact), "offsets": told(value.offsets, exact=True)}
        return parts if value.shapes is None else {**parts, "shapes": told(value.shapes, exact=True)}
    if not isinstance(value, torch.Tensor):
        return list(value)
    values = value.numpy()
    head = {"dtype": values.dtype.name, "shape": [*values.shape]}
    if not exact:
        return {**head, "numbers": values.copy()}
    if values.size <= _SHOWN_ELEMENTS and values.dtype.kind != "f":
        return {**head, "values": values.ravel().tolist()}
    return {**head, "digest": hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest()}


def rest(epochs: Iterable[list[dict[str, Any]]], passed: int) -> list[list[dict[str, Any]]]:
    """Return what follows so many batches of the first epoch."""
    first, *others = epochs
    return [first[passed:], *others]
