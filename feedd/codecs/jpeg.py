"""Reads headers and pixels of JPEGs by libjpeg-turbo, with reusable memory to decode into.

A JPEG with any decoder warning is a bad sample. Decoding can reduce the resolution (see ``codecs.image``) but cannot
skip parts of the picture. libjpeg-turbo can crop while decoding, but neither simplejpeg nor OpenCV exposes that. So a
random crop decodes all rows, at the scale that it needs.
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
"""Colour spaces with four channels."""

_SCALES: Final = (8, 4, 2)  # denominators at which the inverse DCT shrinks with SIMD code
_SCRATCH_KEPT_BYTES: Final = 64 << 20


class Scratch(threading.local):
    """Memory for one decoded image. It is kept between calls, because fresh pages cost as much as the resize."""

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, np.uint8)

    def of(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return at least ``size_bytes`` bytes, valid until the next call in this thread."""
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if size_bytes > self._memory.size:
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory


_START_OF_SCAN: Final = b"\xff\xda"
_SCANS_MAX: Final = 100
_SCANS_COUNTED_FROM: Final = 1 << 41
"""Pixels times bytes from which scans could cost a second: 2.7 ms for each scan of 8192 x 8192 pixels."""

scratch: Final = Scratch()


def header(data: memoryview) -> tuple[int, int, str]:
    """Return height, width and colour space: ``Gray``, ``YCbCr``, ``RGB``, or one of ``INK``.

    Raises:
        BadSample: not a JPEG, or too large.
    """
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise BadSample(f"expected a JPEG, got {len(data)} bytes: {error}") from error
    check_pixels(height, width)
    if height * width * len(data) >= _SCANS_COUNTED_FROM:
        _check_scans(data)
    return height, width, colorspace


def _check_scans(data: memoryview) -> None:
    """Refuse a picture with very many scans: each costs as much as a pass over all pixels, and takes 138 bytes.

    Raises:
        BadSample: there are too many; a progressive photograph has about 10.
    """
    scans = bytes(data).count(_START_OF_SCAN)  # these two bytes are no part of compressed data
    if scans > _SCANS_MAX:
        raise BadSample(f"expected a JPEG of at most {_SCANS_MAX} scans, got {scans}")


def decode(data: memoryview, **options: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - simplejpeg's own options
    """Return the pixels of a JPEG.

    Raises:
        BadSample: not intact.
    """
    try:
        image: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, **options)
    except ValueError as error:
        raise BadSample(f"expected an intact JPEG, got {len(data)} bytes: {error}") from error
    return image


def scale_for(box: Box, height: int, width: int) -> int:
    """Return the largest denominator at which a box still has every pixel that an output size needs."""
    for scale in _SCALES:
        if box.height >= height * scale and box.width >= width * scale:
            return scale
    return 1


def decode_scaled(
    data: memoryview, height: int, width: int, scale: int, *, grey: bool = False, fast: bool = True
) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG at ``1 / scale`` of its size, sides rounded up; valid until the next call.

    Args:
        data: the file.
        height: height from its header.
        width: width from its header.
        scale: 1, or a result of ``scale_for``.
        grey: one channel instead of three.
        fast: use the faster, less exact inverse DCT and upsampling.

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
    """Return the RGB colours of a CMYK JPEG.

    Raises:
        BadSample: not intact.
    """
    cmyk = decode(data, colorspace="CMYK").astype(np.uint16)
    # Adobe's programs and compatible ones store inverted ink and mark it with the Adobe marker.
    if b"Adobe" not in bytes(data[:65536]):
        cmyk = 255 - cmyk
    return ((cmyk[:, :, :3] * cmyk[:, :, 3:] + 127) // 255).astype(np.uint8)
