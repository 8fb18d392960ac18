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

from feedd.daemon.life import _YOUNG_OBJECTS
from feedd.errors import FeeddError
from feedd.observe.logs import configure_logging
from feedd.plan.beside import parse_claims
from feedd.plan.counts import parse
from feedd.plan.objects.labels import parse_table
from feedd.source.lists import lists_of
from feedd.source.sources import _names

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


def _names_of(data: bytearray) -> None:
    _names(data, "manifest+s3://bucket/x")


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
    "_feedd_index.json": (_index, parse, True),
    "MDS index.json": (_mds, lambda data: parse_claims("index.json", data), True),
    "labels.csv": (_table, lambda data: parse_table("labels.csv", data, "label"), True),
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
