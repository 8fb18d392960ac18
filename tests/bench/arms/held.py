"""Arm: one large text of a stranger, read as the daemon reads it; how long the event loop is held meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from feedd.catalog.augmented_manifest import parse_lines
from feedd.catalog.manifest import names_in
from feedd.catalog.url_lists import lists_of
from feedd.daemon.life import _YOUNG_OBJECTS
from feedd.dataset.index_file import rows_of
from feedd.dataset.object_labels import parse_table
from feedd.dataset.sidecars import ForeignCounts, Surroundings
from feedd.errors import FeeddError
from feedd.observe.logs import configure_logging
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S: Final = 0.001


def _manifest(element: bytes) -> Callable[[int], bytearray]:
    head = b'[{"prefix": "s3://bucket/"}'
    return lambda size: bytearray(head + (b"," + element) * (size // (len(element) + 1)) + b"]")


def _index(size: int) -> bytes:
    count = size // 84
    columns = {
        "version": 1,
        "key": [f"train/shard-{number:08d}.tar" for number in range(count)],
        "size_bytes": [100_000_000 + number for number in range(count)],
        "etag": [f"{number:032x}" for number in range(count)],
        "sample_count": [1000] * count,
    }
    return json.dumps(columns, separators=(",", ":")).encode()


def _mds(size: int) -> bytes:
    shard = {"samples": 9, "raw_data": {"basename": "shard.00001.mds", "bytes": 1}, "zip_data": None, "format": "mds"}
    text = json.dumps({**shard, "column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]})
    return f'{{"version": 2, "shards": [{",".join([text] * (size // (len(text) + 1)))}]}}'.encode()


def _table(size: int) -> bytes:
    return b"path,label\n" + b"".join(b"image-%07d.jpg,%d\n" % (number, number % 9) for number in range(size // 20))


def _lines(size: int) -> bytes:
    line = b'{"source-ref": "s3://bucket/images/%08d.jpg", "species": %d, "species-metadata": {"confidence": 0.9}}\n'
    return b"".join(line % (number, number % 9) for number in range(size // 105))


def _listed(keys: list[str], size_bytes: int) -> Surroundings:
    return Surroundings([ObjectRef("s3://b", key, size_bytes, "tag") for key in keys])


def _lit(size: int) -> bytes:
    names = (f"chunk-0-{at:08d}.bin" for at in range(size // 70))
    spec = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
    config = {"data_format": ["int"], "data_spec": spec, "compression": None, "item_loader": "TokensLoader"}
    chunks = [{"chunk_bytes": 9, "chunk_size": 3, "dim": None, "filename": name} for name in names]
    return json.dumps({"chunks": chunks, "config": config}, separators=(",", ":")).encode()


def _sizes(size: int) -> bytes:
    return json.dumps({f"shard-{at:08d}.tar": 3 for at in range(size // 24)}).encode()


def _timm(size: int) -> bytes:
    names = [f"shard-{at:08d}.tar" for at in range(size // 25)]
    return json.dumps({"splits": {"train": {"filenames": names, "shard_lengths": [3] * len(names)}}}).encode()


def _believed(name: str) -> Callable[[bytes], None]:
    around = _listed([name.replace("json", "tar"), *(f"shard-{at:08d}.tar" for at in range(1000))], 4096)
    file = ObjectRef("s3://b", name, 1, "tag")

    def read(data: bytes) -> None:
        claims = ForeignCounts(name, data)
        with contextlib.suppress(ValueError):
            around.believed(file, claims)
        around.formats(file, claims, ())

    return read


def _counted(data: bytes) -> None:
    around = _listed([f"train/shard-{at:08d}.tar" for at in range(1000)], 4096)
    around.counted(ObjectRef("s3://b", "_feedd_index.json", 1, "tag"), rows_of(data))
    around.clear()


def _labelled(data: bytes) -> None:
    parse_table("labels.csv", data, "label").clear()


def _names_of(data: bytearray) -> None:
    names_in(data, "manifest+s3://bucket/x")


def _lines_of(data: bytes) -> None:
    parse_lines(data, "augmented+s3://bucket/x")


def _logged(text: str) -> None:
    structlog.get_logger().info("said", text=text, error=ValueError(text))


def _nothing(_: bytes) -> None:
    time.sleep(2.0)


_TEXTS: Final[dict[str, tuple[Callable[[int], Any], Callable[[Any], object], bool]]] = {
    "nothing, for comparison": (lambda _: b"", _nothing, True),
    "manifest of [],[]": (_manifest(b"[]"), _names_of, True),
    "manifest of names": (_manifest(b'"shard-000001.tar"'), _names_of, True),
    "manifest of one name": (
        lambda size: bytearray(b'[{"prefix": "s3://b/"}, "' + b"a" * size),
        _names_of,
        True,
    ),
    "augmented manifest": (_lines, _lines_of, True),
    "_feedd_index.json": (_index, _counted, True),
    "MDS index.json": (_mds, _believed("index.json"), True),
    "LitData index.json": (_lit, _believed("index.json"), True),
    "sizes.json": (_sizes, _believed("sizes.json"), True),
    "_info.json": (_timm, _believed("_info.json"), True),
    "labels.csv": (_table, _labelled, True),
    "braces": (lambda _: b"s3://b/{0..99999}", lambda data: lists_of([data.decode()]), True),
    "logged on the loop, 1 MiB": (lambda _: "a" * (1 << 20), _logged, False),
}
NAMES: Final = tuple(_TEXTS)


async def _measure(data: Any, read: Callable[[Any], object], *, in_thread: bool) -> dict[str, float]:
    held_s = 0.0
    over = asyncio.Event()

    async def tick() -> None:
        nonlocal held_s
        while not over.is_set():
            began_s = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            held_s = max(held_s, time.perf_counter() - began_s - _TICK_S)

    def job() -> None:
        with contextlib.suppress(FeeddError, ValueError):
            read(data)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.05)
    began_s = time.perf_counter()
    if in_thread:
        await asyncio.to_thread(job)
    else:
        job()
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(0.01)
    over.set()
    await ticking
    return {"held_s": held_s, "took_s": took_s, "given_bytes": len(data)}


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    make, read, in_thread = _TEXTS[settings["text"]]
    configure_logging("json", "info", io.StringIO())
    gc.freeze()  # as the daemon does
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    row = asyncio.run(_measure(make(settings["size_bytes"]), read, in_thread=in_thread))
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
