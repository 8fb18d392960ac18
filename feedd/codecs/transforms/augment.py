"""RandAugment: some of fourteen changes, each as strong as the magnitude states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.codecs.transforms import colors, geometry

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from feedd.codecs.transforms.sample_rng import Draws
    from feedd.recipe.transform_params import RandAugment


def posterized(image: NDArray[Any], bits: int) -> NDArray[Any]:
    """Keep the upper ``bits`` of each value."""
    return image & np.uint8(0xFF00 >> bits & 0xFF)


def solarized(image: NDArray[Any], threshold: float) -> NDArray[Any]:
    """Invert values at or above ``threshold``."""
    levels = np.arange(256)
    return colors.looked_up(image, np.where(levels < threshold, levels, 255 - levels).astype(np.uint8))


def auto_contrasted(image: NDArray[Any]) -> NDArray[Any]:
    """Stretch each channel to the whole scale."""
    channels = image.shape[2]
    low = image.min(axis=(0, 1)).astype(np.float64)
    high = image.max(axis=(0, 1)).astype(np.float64)
    flat = high <= low
    scale = 255.0 / np.where(flat, 255.0, high - low)
    table = (np.arange(256.0)[:, None] - np.where(flat, 0.0, low)) * scale
    return colors.looked_up(image, np.clip(table, 0, 255).astype(np.uint8).reshape(256, 1, channels))


def equalized(image: NDArray[Any]) -> NDArray[Any]:
    """Equalize the histogram of each channel."""
    tables = [
        _equalizing(np.bincount(image[:, :, channel].reshape(-1), minlength=256)) for channel in range(image.shape[2])
    ]
    return colors.looked_up(image, np.stack(tables, axis=-1).reshape(256, 1, -1))


def _equalizing(counts: NDArray[np.intp]) -> NDArray[np.uint8]:
    there = counts[counts > 0]
    step = int(there[:-1].sum()) // 255
    if len(there) <= 1 or not step:
        return np.arange(256, dtype=np.uint8)
    before = np.concatenate(([0], np.cumsum(counts)[:-1]))
    table: NDArray[np.uint8] = np.minimum((step // 2 + before) // step, 255).astype(np.uint8)
    return table


# Image, strength from 0 to 1, sign.
_CHANGES: Final[tuple[Callable[[NDArray[Any], float, int], NDArray[Any]], ...]] = (
    lambda image, strength, sign: image,  # noqa: ARG005 - identity has neither strength nor sign
    lambda image, strength, sign: geometry.sheared(image, sign * 0.3 * strength, 0.0),
    lambda image, strength, sign: geometry.sheared(image, 0.0, sign * 0.3 * strength),
    lambda image, strength, sign: geometry.shifted(image, sign * int(150 / 331 * image.shape[1] * strength), 0),
    lambda image, strength, sign: geometry.shifted(image, 0, sign * int(150 / 331 * image.shape[0] * strength)),
    lambda image, strength, sign: geometry.rotated(image, sign * 30.0 * strength),
    lambda image, strength, sign: colors.brighter(image, 1 + sign * 0.9 * strength),
    lambda image, strength, sign: colors.saturated(image, 1 + sign * 0.9 * strength),
    lambda image, strength, sign: colors.contrasted(image, 1 + sign * 0.9 * strength),
    lambda image, strength, sign: colors.sharpened(image, 1 + sign * 0.9 * strength),
    lambda image, strength, sign: posterized(image, 8 - round(4 * strength)),  # noqa: ARG005 - no sign
    lambda image, strength, sign: solarized(image, 255 * (1 - strength)),  # noqa: ARG005 - no sign
    lambda image, strength, sign: auto_contrasted(image),  # noqa: ARG005 - neither
    lambda image, strength, sign: equalized(image),  # noqa: ARG005 - neither
)


def rand_augment(image: NDArray[Any], one: RandAugment, draws: Draws) -> NDArray[Any]:
    """Apply ``count`` changes: draw 2 k selects the k-th change, draw 2 k + 1 its sign."""
    strength = one.magnitude / (one.bins - 1)
    for number in range(one.count):
        change = _CHANGES[draws.below(2 * number, len(_CHANGES))]
        image = change(image, strength, 1 if draws.uniform(2 * number + 1) < 0.5 else -1)
    return image
