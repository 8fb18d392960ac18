"""Shards for tests and benches: tar files, and images that look natural enough to compress and learn from."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg

from feedd.values import ObjectRef, ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray


def tar_bytes(
    samples: Iterable[tuple[str, Mapping[str, bytes]]], tar_format: int = tarfile.USTAR_FORMAT, **options: str
) -> bytes:
    """Return a WebDataset tar of (key, {extension: bytes}) samples."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format, **options) as tar:  # type: ignore[call-overload]  # dynamic options
        for key, fields in samples:
            for extension, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def shard_file(path: Path, data: bytes, *, data_at: int = 0) -> ShardFile:
    """Write ``data`` as the cache would: the object's first byte at ``data_at`` of a local file."""
    path.write_bytes(b"\0" * data_at + data)
    return ShardFile(ObjectRef("s3://bucket", path.name, len(data), "etag"), str(path), data_at)


def natural_image(rng: np.random.Generator, height: int = 375, width: int = 500) -> NDArray[np.uint8]:
    """Return RGB noise with the 1/f spectrum of photographs, and a few shapes for edges."""
    image = np.full((height, width, 3), 118, np.float32)
    side, amplitude = 4, 60.0
    while side < 1.5 * max(height, width):
        noise = rng.standard_normal((max(2, side * height // width), side, 3)).astype(np.float32)
        noise = 0.35 * noise + 0.9 * noise.mean(axis=2, keepdims=True)  # channels of photographs are correlated
        image += amplitude * cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        side, amplitude = side * 2, amplitude * 0.7
    for _ in range(8):
        shape = np.zeros_like(image)
        centre = (int(rng.integers(width)), int(rng.integers(height)))
        colour = [float(value) for value in rng.integers(-70, 70, 3)]
        cv2.circle(shape, centre, int(rng.integers(8, max(9, height // 4))), colour, -1, cv2.LINE_AA)
        image += shape
    clipped: NDArray[np.uint8] = np.clip(image, 0, 255).astype(np.uint8)
    return clipped


def learnable_image(
    rng: np.random.Generator, label: int, classes: int = 10, height: int = 64, width: int = 64
) -> NDArray[np.uint8]:
    """Return a natural image with stripes whose direction and colour tell ``label``: a small network learns it."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    angle = np.pi * label / classes
    wave = np.sin((columns * np.cos(angle) + rows * np.sin(angle)) * 0.6 + rng.uniform(0, 2 * np.pi))
    hue = np.array([np.cos(2 * angle), np.cos(2 * angle + 2.1), np.cos(2 * angle + 4.2)], np.float32)
    mixed = 0.6 * natural_image(rng, height, width) + 45 + wave[:, :, None] * (25 + 30 * hue)
    clipped: NDArray[np.uint8] = np.clip(mixed, 0, 255).astype(np.uint8)
    return clipped


def jpeg(image: NDArray[np.uint8], quality: int = 90) -> bytes:
    """Encode RGB as 4:2:0 JPEG."""
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, "RGB", "420")
    return encoded


def image_samples(
    count: int, *, seed: int = 0, height: int = 375, width: int = 500, classes: int = 10
) -> list[tuple[str, dict[str, bytes]]]:
    """Return ``count`` labelled JPEG samples with ``jpg``, ``cls`` and ``json`` fields."""
    rng = np.random.default_rng(seed)
    samples: list[tuple[str, dict[str, bytes]]] = []
    for number in range(count):
        label = int(rng.integers(classes))
        image = jpeg(learnable_image(rng, label, classes, height, width))
        text = f'{{"number": {number}, "label": {label}}}'.encode()
        samples.append((f"{seed:04d}/{number:06d}", {"jpg": image, "cls": str(label).encode(), "json": text}))
    return samples
