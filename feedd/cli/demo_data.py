"""A small, learnable image set: ten classes of coloured shapes on noise, as WebDataset tar shards."""

from __future__ import annotations

import io
import tarfile
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

CLASS_COUNT = 10
_SIDE = 96
_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The number of shards and samples to write."""

    shard_count: int = 16
    samples_per_shard: int = 192


def draw(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return one uint8 [96, 96, 3] image: the label decides shape (5) and hue (2), the rest is noise."""
    image = rng.integers(40, 120, (_SIDE, _SIDE, 3), dtype=np.uint8)
    colour = (200, 60, 60) if label % 2 else (60, 60, 200)
    x, y = (int(v) for v in rng.integers(30, _SIDE - 30, 2))
    size = int(rng.integers(14, 26))
    match label // 2:
        case 0:
            cv2.circle(image, (x, y), size, colour, -1)
        case 1:
            cv2.rectangle(image, (x - size, y - size), (x + size, y + size), colour, -1)
        case 2:
            cv2.line(image, (x - size, y - size), (x + size, y + size), colour, 7)
        case 3:
            cv2.circle(image, (x, y), size, colour, 5)
        case _:
            cv2.rectangle(image, (x - size, y - size), (x + size, y + size), colour, 5)
    return image


def shard(index: int, options: DataOptions) -> bytes:
    """Return one tar shard of JPEG and class files; the same index gives the same bytes."""
    rng = np.random.default_rng(index)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for ordinal in range(options.samples_per_shard):
            label = int(rng.integers(CLASS_COUNT))
            _, jpeg = cv2.imencode(".jpg", draw(label, rng), [cv2.IMWRITE_JPEG_QUALITY, 90])
            key = f"{index:05d}-{ordinal:05d}"
            for name, payload in ((f"{key}.jpg", jpeg.tobytes()), (f"{key}.cls", str(label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(payload)
                tar.addfile(member, io.BytesIO(payload))
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of the shards.

    Attributes:
        endpoint: URL of a local S3 server that checks no signatures.
        folder: local folder that gets a copy of each shard; None: no copies.
    """

    endpoint: str
    bucket: str
    prefix: str
    folder: Path | None = None


def upload(target: Target, options: DataOptions, progress: Callable[[int], None], stop: threading.Event) -> int:
    """Write shards to ``target`` until all are written or ``stop`` is set; return the total bytes written.

    Raises:
        OSError: the server or the folder refused a shard.
    """
    _put(f"{target.endpoint}/{target.bucket}", b"")
    if target.folder is not None:
        target.folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for index in range(options.shard_count):
        if stop.is_set():
            break
        name, payload = f"shard-{index:05d}.tar", shard(index, options)
        _put(f"{target.endpoint}/{target.bucket}/{target.prefix}{name}", payload)
        if target.folder is not None:
            (target.folder / name).write_bytes(payload)
        total += len(payload)
        progress(1)
    return total


def _put(url: str, payload: bytes) -> None:
    # Without this header, urllib sends the type of a web form, and the server parses the body as a form.
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, payload, headers, method="PUT")  # noqa: S310 - our own loopback server
    with urllib.request.urlopen(request, timeout=_DEADLINE_S) as response:  # noqa: S310 - ditto
        response.read()
