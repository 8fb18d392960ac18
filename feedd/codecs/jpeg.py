"""JPEG by libjpeg-turbo: headers, pixels, and memory to decode into.

A JPEG the decoder so much as warns about is a bad sample. It can skip resolution (see ``codecs.image``) but no part of
the picture: of the two libraries here neither simplejpeg nor OpenCV passes on libjpeg-turbo's way to crop while
decoding, so a random crop decodes all rows, at the scale it needs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import simplejpeg

from feedd.codecs.image_header import check_pixels
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.codecs.transforms.crop import Box

INK: Final = frozenset({"CMYK", "YCCK"})
"""Colour spaces of four channels."""

_SCALES: Final = (8, 4, 2)  # at which the inverse DCT itself shrinks, by SIMD code
_SCRATCH_KEPT_BYTES: Final = 64 << 20


class Scratch(threading.local):
    """Memory for one decoded image, kept between calls: fresh pages cost as much as the resize."""

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, np.uint8)

    def of(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return so many bytes or more; good until the next call in this thread."""
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if size_bytes > self._memory.size:
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory


scratch: Final = Scratch()


def header(data: memoryview) -> tuple[int, int, str]:
    """Return height, width and colour space: ``Gray``, ``YCbCr``, ``RGB``, or one of ``INK``.

    Raises:
        BadSample: not a JPEG, or too large a one.
    """
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise BadSample(f"expected a JPEG, got {len(data)} bytes that are not: {error}") from error
    check_pixels(height, width)
    return height, width, colorspace


def decode(data: memoryview, **options: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - simplejpeg's own options
    """Return its pixels, or raise.

    Raises:
        BadSample: not intact.
    """
    try:
        image: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, **options)
    except ValueError as error:
        raise BadSample(f"expected an intact JPEG, got {len(data)} bytes: {error}") from error
    return image


def scale_for(box: Box, height: int, width: int) -> int:
    """Return the largest denominator at which a box still has every pixel that a size needs."""
    for scale in _SCALES:
        if box.height >= height * scale and box.width >= width * scale:
            return scale
    return 1


def decode_scaled(
    data: memoryview, height: int, width: int, scale: int, *, grey: bool = False, fast: bool = True
) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG of that size at ``1 / scale`` of it, sides rounded up; good until the next call.

    Args:
        data: the file.
        height: as its header says.
        width: likewise.
        scale: 1, or of ``scale_for``.
        grey: one channel instead of three.
        fast: by the faster, less exact inverse DCT and upsampling.

    Raises:
        BadSample: not intact.
    """
    rows, columns = -(-height // scale), -(-width // scale)
    return decode(
        data,
        colorspace="GRAY" if grey else "RGB",
        fastdct=fast,
        fastupsample=fast,
        min_height=rows if scale > 1 else 0,
        min_width=columns if scale > 1 else 0,
        min_factor=scale,
        buffer=scratch.of(rows * columns * (1 if grey else 3)),
    )


def cmyk_to_rgb(data: memoryview) -> NDArray[np.uint8]:
    """Return the colours of a JPEG in ink.

    Raises:
        BadSample: not intact.
    """
    cmyk = decode(data, colorspace="CMYK").astype(np.uint16)
    # Adobe's programs, and whoever imitates them, store ink inverted and say so with their marker.
    if b"Adobe" not in bytes(data[:65536]):
        cmyk = 255 - cmyk
    return ((cmyk[:, :, :3] * cmyk[:, :, 3:] + 127) // 255).astype(np.uint8)
