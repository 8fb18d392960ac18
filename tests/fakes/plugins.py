"""A distribution with plug-ins, as an operator would install it: a folder for ``sys.path``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_CODE: Final = '''
import numpy as np

from feedd.values import FieldKind, TensorSpec


class Lengths:
    """Bytes to a row of their first few values, scaled."""

    def __init__(self, count=2, dtype="int32", ragged=False):
        if count < 1:
            raise ValueError(f"expected a count of 1 or more, got {count}")
        self.count, self.dtype, self.ragged = count, dtype, ragged

    def spec(self, name):
        if self.ragged:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)
        return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=self.dtype, shape=(self.count,), ndim=1)

    def measure(self, data):
        return (len(data),) if self.ragged else (self.count,)

    def decode(self, data, out, seed):
        out[...] = np.frombuffer(data, np.uint8)[: len(out)]


class Tile:
    """The image beside itself, and a random value in its corner."""

    def __init__(self, times=2, broken=False):
        self.times, self.broken = times, broken

    def outcome(self, shape, dtype):
        height, width, channels = shape
        if self.broken:
            return "no shape at all"
        if dtype != "uint8":
            raise ValueError(f"expected uint8, got {dtype}")
        return (height, None if width is None else width * self.times, channels), dtype

    def __call__(self, image, seed):
        result = np.tile(image, (1, self.times, 1))
        result[0, 0] = seed % 251
        return result
'''
_POINTS: Final = """
[feedd.codecs]
first_bytes = feedd_fake_plugins:Lengths
gone = feedd_fake_plugins_missing:Codec

[feedd.transforms]
tile = feedd_fake_plugins:Tile
lost = feedd_fake_plugins:Nothing
"""


def install_plugins(folder: Path) -> Path:
    """Write the distribution into ``folder`` and return it."""
    info = folder / "feedd_fake_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feedd-fake-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_POINTS)
    (folder / "feedd_fake_plugins.py").write_text(_CODE)
    return folder
