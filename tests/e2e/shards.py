"""Small WebDataset shards whose samples say who they are."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def tar(samples: Sequence[tuple[str, Mapping[str, bytes]]]) -> bytes:
    """Return a tar of samples: (key, extension → bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for key, fields in samples:
            for extension, payload in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(payload)
                out.addfile(member, io.BytesIO(payload))
    return buffer.getvalue()


def jpeg(seed: int, height: int = 48, width: int = 64) -> bytes:
    """Return a JPEG of smooth noise."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    ok, data = cv2.imencode(".jpg", cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))
    assert ok
    return bytes(data.tobytes())


def numbered(shard: int, count: int, *, per_shard: int = 1000, pad_bytes: int = 0) -> bytes:
    """Return a shard of ``count`` samples with ``cls`` = shard * per_shard + ordinal, a small JPEG, and padding."""
    samples = []
    for ordinal in range(count):
        number = shard * per_shard + ordinal
        fields = {"cls": str(number).encode(), "jpg": jpeg(number)}
        if pad_bytes:
            fields["bin"] = bytes([number % 251]) * pad_bytes
        samples.append((f"{number:08d}", fields))
    return tar(samples)
