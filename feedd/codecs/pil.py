"""The ``image`` codec for raw PIL pixels: ``u32 width, height, length of mode | mode | rows from top to bottom``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.codecs.image_header import check_pixels
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec
    from feedd.values import TensorSpec

_HEAD_BYTES: Final = 12
_CHANNELS: Final = {b"L": 1, b"RGB": 3, b"RGBA": 4}
_MODE_BYTES_MAX: Final = 16


class PilCodec:
    """Converts the pixels to a BMP, which every image codec reads.

    Args:
        inner: the codec of encoded images.
    """

    def __init__(self, inner: SampleCodec) -> None:
        self._inner = inner

    def spec(self, name: str) -> TensorSpec:
        """Return the same spec as for encoded images."""
        return self._inner.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the decoded shape.

        Raises:
            BadSample: the bytes are not PIL pixels.
        """
        height, width, _, _ = _head(data)
        return self._inner.measure(memoryview(_bmp_head(height, width)))

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Decode into ``out``.

        Raises:
            BadSample: the bytes are not PIL pixels, or their size differs from ``out``.
        """
        self._inner.decode(memoryview(_bmp(data)), out, seed)


def _head(data: memoryview) -> tuple[int, int, bytes, int]:
    """Return height, width, mode, and the offset of the pixels."""
    if len(data) < _HEAD_BYTES:
        raise BadSample(f"expected size and mode of an image, got {len(data)} bytes")
    width, height, length = struct.unpack_from("<III", data)
    mode = bytes(data[_HEAD_BYTES : _HEAD_BYTES + min(length, _MODE_BYTES_MAX)])
    if mode not in _CHANNELS:
        raise BadSample(f"expected pixels of mode {' or '.join(m.decode() for m in _CHANNELS)}, got {mode!r}")
    check_pixels(height, width)
    at = _HEAD_BYTES + length
    expected = height * width * _CHANNELS[mode]
    if len(data) - at != expected:
        raise BadSample(f"expected {expected} bytes of {height}x{width} pixels, got {len(data) - at}")
    return height, width, mode, at


def _bmp_head(height: int, width: int) -> bytes:
    row = (3 * width + 3) // 4 * 4
    return struct.pack(
        "<2sIHHIIiiHHIIiiII", b"BM", 54 + row * height, 0, 0, 54, 40, width, -height, 1, 24, 0, row * height, 0, 0, 0, 0
    )


def _bmp(data: memoryview) -> bytearray:
    height, width, mode, at = _head(data)
    pixels = np.frombuffer(data, np.uint8, offset=at).reshape(height, width, _CHANNELS[mode])
    head = _bmp_head(height, width)
    row = (3 * width + 3) // 4 * 4
    made = bytearray(len(head) + row * height)
    made[: len(head)] = head
    rows = np.frombuffer(made, np.uint8, offset=len(head)).reshape(height, row)[:, : 3 * width]
    rows.reshape(height, width, 3)[...] = pixels if mode == b"L" else pixels[:, :, 2::-1]
    return made
