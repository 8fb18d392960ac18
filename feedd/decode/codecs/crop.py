"""Which part of an image is wanted, as a pure function of its size and the sample's seed.

The generator is splitmix64 in counter mode: draw ``i`` of seed ``s`` is ``mix(s + (i + 1) * 0x9E3779B97F4A7C15)``
modulo 2**64, with the usual mix (xor-shift 30, times 0xBF58476D1CE4E5B9, xor-shift 27, times 0x94D049BB133111EB,
xor-shift 31); a uniform number in [0, 1) is its upper 53 bits over 2**53. There is no global state, so a sample looks
the same whichever worker decodes it, and two image fields of one sample (image and mask) are cropped alike.

Random resized crop, attempt ``a`` of 10: area = (0.08 + 0.92 * u[4a]) * height * width,
ratio = exp(log(3/4) + u[4a+1] * log(16/9)), width = round(sqrt(area * ratio)), height = round(sqrt(area / ratio));
where both fit, left = floor(u[4a+2] * (free columns + 1)), top = floor(u[4a+3] * (free rows + 1)).
If none fits: the largest centred crop within the ratios. The flip is u[63] < 0.5.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_MASK: Final = (1 << 64) - 1
_ATTEMPTS: Final = 10
_FLIP_DRAW: Final = 63
_SCALE_MIN: Final = 0.08
_RATIO_MIN: Final = 3 / 4
_RATIO_MAX: Final = 4 / 3
_LOG_RATIO_MIN: Final = math.log(_RATIO_MIN)
_LOG_RATIO_SPAN: Final = math.log(_RATIO_MAX / _RATIO_MIN)


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


def uniform(seed: int, draw: int) -> float:
    """Return number ``draw`` of the stream of ``seed``, in [0, 1)."""
    z = (seed + (draw + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def flipped(seed: int) -> bool:
    """Whether the sample is mirrored."""
    return uniform(seed, _FLIP_DRAW) < 0.5


def centred(height: int, width: int, ratio: float) -> Box:
    """Return the largest centred box with ``ratio`` = width / height: resize the shorter side, crop the longer."""
    if width > height * ratio:
        box_height, box_width = height, min(width, max(1, round(height * ratio)))
    else:
        box_height, box_width = min(height, max(1, round(width / ratio))), width
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def random_resized(height: int, width: int, seed: int) -> Box:
    """Return a random box: 8 to 100 % of the area, ratio 3/4 to 4/3."""
    for first in range(0, 4 * _ATTEMPTS, 4):
        area = (_SCALE_MIN + (1 - _SCALE_MIN) * uniform(seed, first)) * height * width
        ratio = math.exp(_LOG_RATIO_MIN + uniform(seed, first + 1) * _LOG_RATIO_SPAN)
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(uniform(seed, first + 2) * (width - box_width + 1))
            top = int(uniform(seed, first + 3) * (height - box_height + 1))
            return Box(top, left, box_height, box_width)
    return centred(height, width, min(max(width / height, _RATIO_MIN), _RATIO_MAX))
