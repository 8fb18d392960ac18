"""The usual ``image`` codec, to 8-bit RGB: JPEG by libjpeg-turbo, PNG, WebP, TIFF, AVIF, JPEG 2000 and BMP by OpenCV.

The wanted part is cut first and resized straight into the batch row, so no other pixel is touched. A JPEG that shrinks
to half or less is decoded at 1/2, 1/4 or 1/8 by the inverse DCT itself. Scales between, such as 5/8, have no SIMD code
and cost more than they save.

A JPEG with any decoder warning is a bad sample, because a truncated file would otherwise pass as a grey picture. All
other options (orientation, grey, 16 bits, transforms) are in ``picture``, so that this path stays short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from feedd.codecs import jpeg, pixels
from feedd.codecs.image_header import header_of, is_jpeg
from feedd.codecs.transforms.crop import Box, centred, flipped, random_resized, shrunk
from feedd.errors import BadSample
from feedd.recipe.params import ImageParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import TensorSpec


class WholeImageCodec:
    """Codec of ``image``: every pixel, at the image's own size."""

    def __init__(self, params: ImageParams) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8, 3 dimensions."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return height, width and 3, from the header.

        Raises:
            BadSample: not an image, or too large.
        """
        height, width = jpeg.header(data)[:2] if is_jpeg(data) else header_of(data)[:2]
        return (height, width, 3)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Decode into ``out`` (uint8, height x width x 3).

        Raises:
            BadSample: corrupt, or the size differs from ``out``.
        """
        shape = self.measure(data)
        if out.shape != shape:
            raise BadSample(f"expected an image of shape {list(out.shape)}, got {list(shape)}")
        if not is_jpeg(data):
            cv2.cvtColor(pixels.decode(data, header_of(data)), cv2.COLOR_BGR2RGB, dst=out)
        elif jpeg.header(data)[2] in jpeg.INK:
            out[...] = jpeg.cmyk_to_rgb(data)
        else:
            jpeg.decode(data, buffer=out)


class FittedImageCodec:
    """Codec of ``image:HxW`` and ``image:HxW:random``."""

    def __init__(self, params: ImageParams, size: tuple[int, int]) -> None:
        self._params = params
        self._height, self._width = size
        self._random = "random_resized_crop" in params.augment
        self._flip = "flip" in params.augment

    def spec(self, name: str) -> TensorSpec:
        """DENSE uint8 [H, W, 3]."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:  # noqa: ARG002 - the seam's name
        """Return the shape that the recipe states."""
        return (self._height, self._width, 3)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Decode the wanted part into ``out`` (uint8, height x width x 3, C order).

        Raises:
            BadSample: corrupt, not an image, or too large.
        """
        if is_jpeg(data):
            height, width, colours = jpeg.header(data)
            box = self._box(height, width, seed)
            if colours in jpeg.INK:
                self._resize(jpeg.cmyk_to_rgb(data), box, out)
            else:
                self._decode_scaled(data, height, width, box, out)
        else:
            header = header_of(data)
            box = self._box(header.height, header.width, seed)
            self._resize(pixels.decode(data, header), box, out)
            cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)
        if self._flip and flipped(seed):
            cv2.flip(out, 1, dst=out)

    def _box(self, height: int, width: int, seed: int) -> Box:
        if self._random:
            return random_resized(height, width, seed)
        return centred(height, width, self._width / self._height)

    def _decode_scaled(self, data: memoryview, height: int, width: int, box: Box, out: NDArray[Any]) -> None:
        """Decode at the smallest scale that still has every pixel the result needs."""
        scale = jpeg.scale_for(box, self._height, self._width)
        image = jpeg.decode_scaled(data, height, width, scale)
        if scale > 1:
            box = shrunk(box, scale, *image.shape[:2])
        self._resize(image, box, out)

    def _resize(self, image: NDArray[np.uint8], box: Box, out: NDArray[Any]) -> None:
        part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        # Down to half the size, linear interpolation reads every pixel. Below, only averaging does (8 times the cost).
        shrinks = box.height * box.width > 4 * self._height * self._width
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        cv2.resize(part, (self._width, self._height), dst=out, interpolation=how)


def decode_image(data: bytes | memoryview, height: int, width: int) -> NDArray[np.uint8]:
    """Decode, resize the shorter side and crop the centre: ``image:HxW`` as a plain function, safe in threads.

    Benchmarks give this function to other loaders, so that all loaders decode alike.

    Returns:
        A fresh uint8 array [height, width, 3], RGB.

    Raises:
        BadSample: corrupt, not an image, or too large.
    """
    out = np.empty((height, width, 3), np.uint8)
    FittedImageCodec(ImageParams(size=(height, width)), (height, width)).decode(memoryview(data), out, 0)
    return out
