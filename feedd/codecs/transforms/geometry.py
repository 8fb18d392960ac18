"""Transforms that move pixels. Input images (rows x columns x channels) are not changed; results may be views."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from feedd.codecs.transforms.crop import Box, random_resized, window
from feedd.recipe import transform_params as params
from feedd.recipe.transform_outcomes import CV_DTYPES, sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.codecs.transforms.sample_rng import Draws

_BORDERS: Final = {
    "constant": cv2.BORDER_CONSTANT,
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
}
_HOW: Final = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
}
# EXIF orientations, after the swap of rows and columns that 5 to 8 begin with.
_UPSIDE_DOWN: Final = frozenset({3, 4, 7, 8})
_MIRRORED: Final = frozenset({2, 3, 6, 7})


def solid(image: NDArray[Any]) -> NDArray[Any]:
    """Return ``image`` with its channel axis, which OpenCV drops if there is one channel."""
    return image[:, :, None] if image.ndim == 2 else image


def resize(image: NDArray[Any], height: int, width: int, how: params.Interpolation = "auto") -> NDArray[Any]:
    """Return ``image`` at another size.

    ``auto`` is linear, or averages if less than a quarter of the pixels remain, because linear would skip pixels.
    """
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    if how == "auto":
        how = "area" if rows * columns > 4 * height * width else "linear"
    return solid(cv2.resize(image, (width, height), interpolation=_HOW[how]))


def box_of(one: params.Transform, height: int, width: int, draws: Draws) -> Box | None:
    """Return the part that a transform cuts and resizes, or None if the transform does something else."""
    if isinstance(one, params.Resize):
        return Box(0, 0, height, width)
    if isinstance(one, params.RandomResizedCrop):
        return random_resized(height, width, draws.seed, window(one.scale, one.ratio))
    return None


def oriented_size(height: int, width: int, tag: int) -> tuple[int, int]:
    """Return height and width after an EXIF orientation, 1 to 8, is applied."""
    return (width, height) if tag >= 5 else (height, width)


def encoded_box(box: Box, height: int, width: int, tag: int) -> Box:
    """Return the box, in stored pixels, of a part of the upright image of ``height`` x ``width``."""
    top = height - box.top - box.height if tag in _UPSIDE_DOWN else box.top
    left = width - box.left - box.width if tag in _MIRRORED else box.left
    return Box(left, top, box.width, box.height) if tag >= 5 else Box(top, left, box.height, box.width)


def oriented(image: NDArray[Any], tag: int) -> NDArray[Any]:
    """Return an upright view of stored pixels (rows, columns, ...)."""
    if tag >= 5:
        image = image.swapaxes(0, 1)
    if tag in _UPSIDE_DOWN:
        image = image[::-1]
    return image[:, ::-1] if tag in _MIRRORED else image


def random_resized_crop(image: NDArray[Any], one: params.RandomResizedCrop, draws: Draws) -> NDArray[Any]:
    """Cut the box that the seed selects, and resize it."""
    box = random_resized(image.shape[0], image.shape[1], draws.seed, window(one.scale, one.ratio))
    part = image[box.top : box.top + box.height, box.left : box.left + box.width]
    return resize(part, *sides(one.size), one.interpolation)


def center_crop(image: NDArray[Any], one: params.CenterCrop) -> NDArray[Any]:
    """Cut the centre; offsets are rounded like torchvision's."""
    height, width = sides(one.size)
    image = _grown(image, height, width, one.fill)
    rows, columns = image.shape[:2]
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return image[top : top + height, left : left + width]


def random_crop(image: NDArray[Any], one: params.RandomCrop, draws: Draws) -> NDArray[Any]:
    """Cut a random part: draw 0 selects the rows, draw 1 the columns."""
    height, width = sides(one.size)
    left, top, right, bottom = params.edges(one.padding)
    if left or top or right or bottom:
        image = bordered(image, (left, top, right, bottom), one.fill)
    image = _grown(image, height, width, one.fill)
    top = draws.below(0, image.shape[0] - height + 1)
    left = draws.below(1, image.shape[1] - width + 1)
    return image[top : top + height, left : left + width]


def _grown(image: NDArray[Any], height: int, width: int, fill: float) -> NDArray[Any]:
    """Return ``image`` with a border if it is too small; the smaller half is at the top and left."""
    rows, columns = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    if not rows and not columns:
        return image
    return bordered(image, (columns // 2, rows // 2, columns - columns // 2, rows - rows // 2), fill)


def bordered(image: NDArray[Any], edges: Sequence[int], fill: float = 0, mode: str = "constant") -> NDArray[Any]:
    """Return ``image`` with a border of ``edges``: left, top, right, bottom."""
    left, top, right, bottom = edges
    border = _BORDERS[mode]
    return solid(cv2.copyMakeBorder(image, top, bottom, left, right, border, value=(fill, fill, fill, fill)))


def mirrored(image: NDArray[Any]) -> NDArray[Any]:
    """Return ``image`` with left and right swapped."""
    return solid(cv2.flip(image, 1)) if image.dtype.name in CV_DTYPES else image[:, ::-1]


def upside_down(image: NDArray[Any]) -> NDArray[Any]:
    """Return ``image`` with top and bottom swapped."""
    return image[::-1]


def sheared(image: NDArray[Any], along_x: float, along_y: float) -> NDArray[Any]:
    """Take pixel (x, y) from (x + ``along_x`` y, y + ``along_y`` x), nearest neighbour, black outside."""
    return _warped(image, (1, along_x, 0), (along_y, 1, 0))


def shifted(image: NDArray[Any], right: int, down: int) -> NDArray[Any]:
    """Move pixels by whole rows and columns; freed pixels are black."""
    out = np.zeros_like(image)
    rows, columns = image.shape[:2]
    if abs(right) < columns and abs(down) < rows:
        out[max(0, down) : rows + min(0, down), max(0, right) : columns + min(0, right)] = image[
            max(0, -down) : rows - max(0, down), max(0, -right) : columns - max(0, right)
        ]
    return out


def rotated(image: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Rotate counter-clockwise around the centre, nearest neighbour, black outside."""
    rows, columns = image.shape[:2]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = columns / 2, rows / 2
    return _warped(image, (cos, -sin, x - x * cos + y * sin), (sin, cos, y - x * sin - y * cos))


def _warped(image: NDArray[Any], x: tuple[float, ...], y: tuple[float, ...]) -> NDArray[Any]:
    """Take each pixel from where ``x`` and ``y`` map it; both count from a pixel's corner, OpenCV from its centre."""
    rows = [[a, b, a / 2 + b / 2 + c - 0.5] for a, b, c in (x, y)]
    size = (image.shape[1], image.shape[0])
    return solid(cv2.warpAffine(image, np.array(rows), size, flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP))
