"""Reduces encoded images in size: decoded, resized and encoded again in the same format.

The bytes depend on the versions of simplejpeg and OpenCV, and may depend on the kind of CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
import simplejpeg

from feedd.codecs import jpeg, pixels
from feedd.codecs.image_header import header_of, is_jpeg, orientation_of
from feedd.codecs.transforms import geometry
from feedd.codecs.transforms.crop import Box
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_JPEGS: Final = frozenset({"jpg", "jpeg"})


def reduced(data: memoryview, extension: str, side: int, quality: int) -> bytes | None:
    """Return an image whose shorter side has ``side`` pixels, or None if the image is not larger than that.

    EXIF orientation is applied, because the new file has no EXIF. All other metadata is left out too.

    Args:
        data: the file.
        extension: jpg, jpeg, png or webp; it decides the format of the result.
        side: wanted length of the shorter side.
        quality: quality of a JPEG or a WebP.

    Raises:
        BadSample: not an intact image, or too large.
    """
    if is_jpeg(data):
        height, width, colours = jpeg.header(data)
        header = None
    else:
        header = header_of(data)
        height, width, colours = header.height, header.width, ""
    if min(height, width) <= side:
        return None
    scale = side / min(height, width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    if header is not None:
        grey = header.channels == 1
        image = pixels.decode(data, header, 4 if header.channels == 4 else 1 if grey else 3, deep=header.depth > 8)
        if not grey:
            image = cv2.cvtColor(image, cv2.COLOR_BGRA2RGBA if header.channels == 4 else cv2.COLOR_BGR2RGB)
    elif colours in jpeg.INK:
        image = jpeg.cmyk_to_rgb(data)
    else:
        by = jpeg.scale_for(Box(0, 0, height, width), rows, columns)
        image = jpeg.decode_scaled(data, height, width, by, grey=colours == "Gray", fast=False)
    small = geometry.resize(image, rows, columns, "area")
    tag = orientation_of(data)
    return _encoded(geometry.oriented(small.reshape(rows, columns, -1), tag), extension, quality)


def _encoded(image: NDArray[Any], extension: str, quality: int) -> bytes:
    """Return an image, red first, in the format of an extension."""
    image = np.ascontiguousarray(image)
    channels = image.shape[2]
    if extension in _JPEGS:
        if image.dtype != np.uint8:
            image = (image >> 8).astype(np.uint8)
        image = np.ascontiguousarray(image[:, :, :3]) if channels == 4 else image
        colours = "GRAY" if channels == 1 else "RGB"
        encoded: bytes = simplejpeg.encode_jpeg(image, quality, colours, "444" if channels == 1 else "420")
        return encoded
    if channels > 1:
        image = cv2.cvtColor(image, cv2.COLOR_RGBA2BGRA if channels == 4 else cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_WEBP_QUALITY, quality] if extension == "webp" else []
    good, out = cv2.imencode(f".{extension}", image, options)
    if not good:
        raise BadSample(f"expected an image that can be written as {extension}, got {image.shape} of {image.dtype}")
    return bytes(out)
