"""``image``: JPEG by libjpeg-turbo, PNG, WebP and BMP by OpenCV; always 8-bit RGB.

The wanted part is cut first and resized straight into the batch row, so that no other pixel is touched; JPEGs that
shrink to half or less are decoded at 1/2, 1/4 or 1/8 by the inverse DCT itself (scales between, such as 5/8, have no
SIMD code and cost more than they save). A JPEG the decoder so much as warns about is a bad sample: a truncated file
would otherwise pass as a grey picture. EXIF orientation is ignored for now.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np
import simplejpeg

from feedd.decode.codecs.crop import Box, centred, flipped, random_resized
from feedd.decode.codecs.sniff import check_pixels, is_jpeg, size_of
from feedd.decode.params import ImageParams
from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import TensorSpec

_SCRATCH_KEPT_BYTES: Final = 64 << 20
_SCALES: Final = (8, 4, 2)

cv2.setNumThreads(0)  # one worker, one core: its own threads would only fight the other workers
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the error we raise says more, once


class _Scratch(threading.local):
    """Memory for one decoded image, kept between calls: fresh pages cost as much as the resize."""

    def __init__(self) -> None:
        self._memory = np.empty(1 << 20, np.uint8)

    def of(self, size_bytes: int) -> NDArray[np.uint8]:
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if size_bytes > self._memory.size:
            self._memory = np.empty(size_bytes, np.uint8)
        return self._memory


_scratch: Final = _Scratch()


def _jpeg_header(data: memoryview) -> tuple[int, int, bool]:
    """Return height, width and whether it is CMYK."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise BadSample(f"expected a JPEG, got {len(data)} bytes that are not: {error}") from error
    check_pixels(height, width)
    return height, width, colorspace in {"CMYK", "YCCK"}


def _decode_jpeg(data: memoryview, **options: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - simplejpeg's own options
    try:
        image: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, **options)
    except ValueError as error:
        raise BadSample(f"expected an intact JPEG, got {len(data)} bytes: {error}") from error
    return image


def _cmyk_to_rgb(data: memoryview) -> NDArray[np.uint8]:
    cmyk = _decode_jpeg(data, colorspace="CMYK").astype(np.uint16)
    # Adobe's programs, and whoever imitates them, store ink inverted and say so with their marker.
    if b"Adobe" not in bytes(data[:65536]):
        cmyk = 255 - cmyk
    return ((cmyk[:, :, :3] * cmyk[:, :, 3:] + 127) // 255).astype(np.uint8)


def _decode_other(data: memoryview) -> NDArray[np.uint8]:
    """Return BGR pixels of a PNG, WebP or BMP."""
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise BadSample(f"expected an image, got {len(data)} bytes: {error.err}") from error
    if image is None:
        raise BadSample(f"expected an intact image, got {len(data)} bytes that do not decode")
    return image  # type: ignore[return-value]  # the stub knows no dtype; IMREAD_COLOR is always uint8


class WholeImageCodec:
    """``image``: every pixel, at its own size."""

    def __init__(self, params: ImageParams) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8, 3 dimensions."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Height, width, 3; from the header.

        Raises:
            BadSample: not an image, or too large a one.
        """
        height, width = _jpeg_header(data)[:2] if is_jpeg(data) else size_of(data)
        return (height, width, 3)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Decode into ``out`` (uint8, height x width x 3).

        Raises:
            BadSample: corrupt, or not of that size.
        """
        shape = self.measure(data)
        if out.shape != shape:
            raise BadSample(f"expected an image of shape {list(out.shape)}, got {list(shape)}")
        if not is_jpeg(data):
            cv2.cvtColor(_decode_other(data), cv2.COLOR_BGR2RGB, dst=out)
        elif _jpeg_header(data)[2]:
            out[...] = _cmyk_to_rgb(data)
        else:
            _decode_jpeg(data, buffer=out)


class FittedImageCodec:
    """``image:HxW`` and ``image:HxW:random``."""

    def __init__(self, params: ImageParams, size: tuple[int, int]) -> None:
        self._params = params
        self._height, self._width = size
        self._random = "random_resized_crop" in params.augment
        self._flip = "flip" in params.augment

    def spec(self, name: str) -> TensorSpec:
        """DENSE uint8 [H, W, 3]."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:  # noqa: ARG002 - the seam's name
        """Return the shape the recipe says."""
        return (self._height, self._width, 3)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Decode the wanted part into ``out`` (uint8, height x width x 3, C order).

        Raises:
            BadSample: corrupt, not an image, or too large a one.
        """
        if is_jpeg(data):
            height, width, cmyk = _jpeg_header(data)
            box = self._box(height, width, seed)
            if cmyk:
                self._resize(_cmyk_to_rgb(data), box, out)
            else:
                self._decode_scaled(data, height, width, box, out)
        else:
            box = self._box(*size_of(data), seed)
            self._resize(_decode_other(data), box, out)
            cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)
        if self._flip and flipped(seed):
            cv2.flip(out, 1, dst=out)

    def _box(self, height: int, width: int, seed: int) -> Box:
        if self._random:
            return random_resized(height, width, seed)
        return centred(height, width, self._width / self._height)

    def _decode_scaled(self, data: memoryview, height: int, width: int, box: Box, out: NDArray[Any]) -> None:
        """Decode at the smallest scale at which the box still has every pixel the result needs."""
        scale = 1
        for candidate in _SCALES:
            if box.height >= self._height * candidate and box.width >= self._width * candidate:
                scale = candidate
                break
        rows, columns = -(-height // scale), -(-width // scale)
        image = _decode_jpeg(
            data,
            fastdct=True,
            fastupsample=True,
            min_height=rows if scale > 1 else 0,
            min_width=columns if scale > 1 else 0,
            min_factor=scale,
            buffer=_scratch.of(rows * columns * 3),
        )
        if scale > 1:
            # Edges are rounded to the nearest scaled pixel: cutting them off would shift the picture.
            top, left = (box.top + scale // 2) // scale, (box.left + scale // 2) // scale
            bottom = min((box.top + box.height + scale // 2) // scale, rows)
            right = min((box.left + box.width + scale // 2) // scale, columns)
            box = Box(top, left, bottom - top, right - left)
        self._resize(image, box, out)

    def _resize(self, image: NDArray[np.uint8], box: Box, out: NDArray[Any]) -> None:
        part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        # Up to half the size, linear interpolation sees every pixel; below, only averaging does (at 8 times the cost).
        shrinks = box.height * box.width > 4 * self._height * self._width
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        cv2.resize(part, (self._width, self._height), dst=out, interpolation=how)


def decode_image(data: bytes | memoryview, height: int, width: int) -> NDArray[np.uint8]:
    """Decode, resize the shorter side and crop the centre: ``image:HxW`` as a plain function, safe in threads.

    Benches hand this to other loaders, so that all of them decode alike.

    Returns:
        A fresh uint8 array [height, width, 3], RGB.

    Raises:
        BadSample: corrupt, not an image, or too large a one.
    """
    out = np.empty((height, width, 3), np.uint8)
    FittedImageCodec(ImageParams(size=(height, width)), (height, width)).decode(memoryview(data), out, 0)
    return out
