"""Selects the part of an image to use, as a pure function of the image's size and the sample's seed.

The generator is splitmix64 in counter mode: draw ``i`` of seed ``s`` is ``mix(s + (i + 1) * 0x9E3779B97F4A7C15)``
modulo 2**64, with the usual mix (xor-shift 30, times 0xBF58476D1CE4E5B9, xor-shift 27, times 0x94D049BB133111EB,
xor-shift 31). A uniform number in [0, 1) is its upper 53 bits over 2**53. There is no global state, so every worker
decodes a sample to the same values. Two image fields of one sample (image and mask) are cropped alike.

Random resized crop, attempt ``a`` of 10: area = (0.08 + 0.92 * u[4a]) * height * width,
ratio = exp(log(3/4) + u[4a+1] * log(16/9)), width = round(sqrt(area * ratio)), height = round(sqrt(area / ratio)).
If both fit, left = floor(u[4a+2] * (free columns + 1)), top = floor(u[4a+3] * (free rows + 1)).
If no attempt fits: the largest centred crop within the ratios. The flip is u[63] < 0.5.
"""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple

_MASK: Final = (1 << 64) - 1
_ATTEMPTS: Final = 10
_FLIP_DRAW: Final = 63


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


class Window(NamedTuple):
    """Bounds of random boxes."""

    scale_min: float
    scale_span: float
    ratio_min: float
    ratio_max: float
    log_ratio_min: float
    log_ratio_span: float


_USUAL: Final = Window(0.08, 1 - 0.08, 3 / 4, 4 / 3, math.log(3 / 4), math.log((4 / 3) / (3 / 4)))


def bits(seed: int, draw: int) -> int:
    """Return number ``draw`` of the stream of ``seed``, 64 bits."""
    z = (seed + (draw + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, draw: int) -> float:
    """Return number ``draw`` of the stream of ``seed``, in [0, 1)."""
    z = (seed + (draw + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def flipped(seed: int) -> bool:
    """Whether the sample is mirrored left to right."""
    return uniform(seed, _FLIP_DRAW) < 0.5


def centred(height: int, width: int, ratio: float) -> Box:
    """Return the largest centred box with ``ratio`` = width / height: resize the shorter side, crop the longer."""
    if width > height * ratio:
        box_height, box_width = height, min(width, max(1, round(height * ratio)))
    else:
        box_height, box_width = min(height, max(1, round(width / ratio))), width
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


@functools.lru_cache(maxsize=256)
def window(scale: tuple[float, float], ratio: tuple[float, float]) -> Window:
    """Return the bounds of random boxes: their part of the area and their ratio of width to height."""
    log_least = math.log(ratio[0])
    return Window(scale[0], scale[1] - scale[0], ratio[0], ratio[1], log_least, math.log(ratio[1]) - log_least)


def random_resized(height: int, width: int, seed: int, within: Window = _USUAL) -> Box:
    """Return a random box: by default 8 to 100 % of the area, ratio 3/4 to 4/3."""
    scale, scale_span, ratio_min, ratio_max, log_ratio, log_ratio_span = within
    for first in range(0, 4 * _ATTEMPTS, 4):
        area = (scale + scale_span * uniform(seed, first)) * height * width
        ratio = math.exp(log_ratio + uniform(seed, first + 1) * log_ratio_span)
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(uniform(seed, first + 2) * (width - box_width + 1))
            top = int(uniform(seed, first + 3) * (height - box_height + 1))
            return Box(top, left, box_height, box_width)
    return centred(height, width, min(max(width / height, ratio_min), ratio_max))


def shrunk(box: Box, scale: int, rows: int, columns: int) -> Box:
    """Return ``box`` in an image of ``rows`` x ``columns`` that was decoded at 1 / ``scale``.

    Edges are rounded to the nearest scaled pixel, because truncation would shift the picture.
    """
    top, left = (box.top + scale // 2) // scale, (box.left + scale // 2) // scale
    bottom = min((box.top + box.height + scale // 2) // scale, rows)
    right = min((box.left + box.width + scale // 2) // scale, columns)
    return Box(top, left, bottom - top, right - left)
