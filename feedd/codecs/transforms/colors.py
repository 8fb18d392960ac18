"""Transforms that change pixel values, by tables of 256 entries and by OpenCV."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from feedd.codecs.transforms.geometry import solid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.codecs.transforms.sample_rng import Draws
    from feedd.recipe.transform_params import ColorJitter, Grayscale, Normalize

_LEVELS: Final = np.arange(256, dtype=np.float32)
_SMOOTH: Final = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_FULL_SCALE: Final = {"uint8": 255.0, "uint16": 65535.0}


def luma(image: NDArray[Any]) -> NDArray[Any]:
    """Return one channel: 0.299 red, 0.587 green, 0.114 blue."""
    return image if image.shape[2] == 1 else solid(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))


def grayscale(image: NDArray[Any], one: Grayscale, draws: Draws) -> NDArray[Any]:
    """Drop colours; if ``p`` is below 1, draw 0 decides."""
    if one.p < 1 and draws.uniform(0) >= one.p:
        return image if image.shape[2] == one.channels else np.repeat(image, one.channels, axis=2)
    grey = luma(image)
    return grey if one.channels == 1 else cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)


def looked_up(image: NDArray[Any], table: NDArray[Any]) -> NDArray[Any]:
    """Return ``image`` (uint8) with each value looked up in ``table``: 256 entries for all channels, or for each."""
    return solid(cv2.LUT(image, table))


def _table(levels: NDArray[Any]) -> NDArray[np.uint8]:
    table: NDArray[np.uint8] = np.clip(levels, 0, 255).astype(np.uint8)  # truncates, as Pillow's blend does
    return table


def brighter(image: NDArray[Any], factor: float) -> NDArray[Any]:
    """Multiply all values by ``factor``."""
    return looked_up(image, _table(_LEVELS * np.float32(factor)))


def contrasted(image: NDArray[Any], factor: float) -> NDArray[Any]:
    """Move values away from the image's mean luma (``factor`` above 1) or towards it."""
    mean = int(luma(image).mean() + 0.5)
    return looked_up(image, _table(mean + (_LEVELS - mean) * np.float32(factor)))


def saturated(image: NDArray[Any], factor: float) -> NDArray[Any]:
    """Move values away from each pixel's luma (``factor`` above 1) or towards it."""
    if image.shape[2] == 1:
        return image
    grey = cv2.cvtColor(luma(image), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, grey, 1 - factor, 0)


def sharpened(image: NDArray[Any], factor: float) -> NDArray[Any]:
    """Move values away from the smoothed image (``factor`` above 1) or towards it; the outermost pixels stay."""
    if min(image.shape[:2]) < 3:
        return image
    smooth = image.copy()
    smooth[1:-1, 1:-1] = solid(cv2.filter2D(image, -1, _SMOOTH))[1:-1, 1:-1]
    return solid(cv2.addWeighted(image, factor, smooth, 1 - factor, 0))


def hued(image: NDArray[Any], turn: float) -> NDArray[Any]:
    """Rotate all hues by ``turn``, a fraction of the circle."""
    if image.shape[2] == 1:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[:, :, 0] += np.uint8(int(turn * 255) % 256)  # wraps around like hues do
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


_JITTERS: Final = (
    ("brightness", brighter),
    ("contrast", contrasted),
    ("saturation", saturated),
    ("hue", hued),
)


def color_jitter(image: NDArray[Any], one: ColorJitter, draws: Draws) -> NDArray[Any]:
    """Change brightness, contrast, saturation and hue: draws 0 to 3 give the amounts, 4 to 6 the order."""
    order = [0, 1, 2, 3]
    for last in (3, 2, 1):
        other = draws.below(3 + last, last + 1)
        order[last], order[other] = order[other], order[last]
    for number in order:
        name, change = _JITTERS[number]
        low, high = one.span(name)
        if low != high or low != float(name != "hue"):
            image = change(image, draws.between(number, low, high))
    return image


@functools.lru_cache(maxsize=64)
def _scales(one: Normalize, channels: int, dtype: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return factor and offset; for uint8, a table of the results instead of the factor."""
    std = np.array(one.std, np.float64) * np.ones(channels)
    factor = 1 / (_FULL_SCALE.get(dtype, 1.0) * std)
    offset = -np.array(one.mean, np.float64) / std
    if dtype == "uint8":
        table = (np.arange(256.0)[:, None] * factor + offset).astype(np.float32)
        return table.reshape(256, 1, channels), offset.astype(np.float32)
    return factor.astype(np.float32), offset.astype(np.float32)


def normalize(image: NDArray[Any], one: Normalize) -> NDArray[Any]:
    """Return normalized floats."""
    factor, offset = _scales(one, image.shape[2], image.dtype.name)
    if image.dtype == np.uint8:
        result = looked_up(image, factor)
    else:
        result = image.astype(np.float32)
        result *= factor
        result += offset
    with np.errstate(over="ignore"):
        return result.astype(one.dtype, copy=False)
