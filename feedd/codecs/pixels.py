"""Decodes PNG, WebP, TIFF, AVIF, JPEG 2000 and BMP to pixels by OpenCV, in its colour order: blue first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from feedd.codecs import tiff
from feedd.codecs.image_header import check_png_chunks, is_png
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.codecs.image_header import Header

_GREY: Final = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
_COLOUR: Final = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

cv2.setNumThreads(0)  # a worker has one core, so threads would only compete with other workers
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # feedd's own error says more


def decode(data: memoryview, header: Header, channels: int = 3, *, deep: bool = False) -> NDArray[Any]:
    """Return pixels as they are stored: EXIF orientation is not applied.

    Args:
        data: the file.
        header: the header of ``data``.
        channels: 1 for a grey image, 3, or 4 with alpha.
        deep: return uint16, with 8-bit values scaled up; otherwise uint8, the upper bits of deeper images.

    Returns:
        [height, width, channels], blue first.

    Raises:
        BadSample: not intact, the size differs from the header's, or the pixels are floats.
    """
    if is_png(data):
        check_png_chunks(data)
    raw = np.frombuffer(tiff.without_orientation(data) if tiff.is_tiff(data) else data, np.uint8)
    flags = cv2.IMREAD_UNCHANGED if channels == 4 else _GREY if channels == 1 else _COLOUR
    try:
        image = cv2.imdecode(raw, flags | cv2.IMREAD_ANYDEPTH if deep and channels != 4 else flags)
    except cv2.error as error:
        raise BadSample(f"expected an image, got {len(data)} bytes: {error.err}") from error
    if image is None:
        raise BadSample(f"expected an intact image, got {len(data)} bytes that do not decode")
    if image.shape[:2] != header[:2]:
        raise BadSample(f"expected {header.height}x{header.width} pixels, got {image.shape[0]}x{image.shape[1]}")
    if channels != 3:
        image = _with_channels(image, channels)
    return image if not deep and image.dtype == np.uint8 else _at_depth(image, data, header, deep=deep)


def _with_channels(image: NDArray[Any], channels: int) -> NDArray[Any]:
    image = image.reshape(*image.shape[:2], -1)
    if image.shape[2] == channels:
        return image
    if channels == 4 and image.shape[2] == 3:  # the header states alpha, but the pixels have none
        return np.dstack([image, np.full(image.shape[:2], np.iinfo(image.dtype).max, image.dtype)])
    raise BadSample(f"expected {channels} channels, got {image.shape[2]}")


def _at_depth(image: NDArray[Any], data: memoryview, header: Header, *, deep: bool) -> NDArray[Any]:
    """Return ``image`` scaled so that full intensity is 255 or 65535."""
    if image.dtype == np.uint8:
        return image.astype(np.uint16) * np.uint16(257)
    if image.dtype != np.uint16:
        raise BadSample(f"expected 8 or 16 bits per channel, got {image.dtype}")
    # OpenCV itself scales up TIFF pixels of fewer bits.
    depth = header.depth if 8 < header.depth < 16 and not tiff.is_tiff(data) else 16
    if not deep:
        upper: NDArray[np.uint16] = image >> np.uint16(depth - 8)
        return upper.astype(np.uint8)
    if depth == 16:
        return image
    most = (1 << depth) - 1
    spread: NDArray[np.uint32] = (np.minimum(image, most).astype(np.uint32) * 65535 + most // 2) // most
    return spread.astype(np.uint16)
