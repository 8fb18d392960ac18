from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.codecs.transforms.crop import centred, flipped, random_resized, uniform

sides = st.integers(1, 3000)
seeds = st.integers(0, 2**64 - 1)


def test_the_generator_is_splitmix64() -> None:
    """Draws equal the published sequence of splitmix64 for seed 1234567, so others can reproduce a crop."""
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    assert [uniform(1234567, draw) for draw in range(4)] == [(value >> 11) * 2.0**-53 for value in published]


@pytest.mark.parametrize(
    ("seed", "box", "flip"),
    [
        (0, (141, 56, 192, 174), False),  # of the second attempt
        (1, (27, 136, 313, 360), False),
        (2, (44, 79, 318, 367), True),
        (12345, (28, 38, 212, 179), True),
        (2**64 - 1, (4, 8, 365, 463), False),
    ],
)
def test_a_seed_means_the_same_crop_for_ever(seed: int, box: tuple[int, ...], flip: bool) -> None:
    """Box and flip of an image of 375 x 500: a run resumed with another version must go on with the same pictures."""
    assert (random_resized(375, 500, seed), flipped(seed)) == (box, flip)


@given(height=sides, width=sides, ratio=st.floats(0.05, 20))
def test_the_centred_box_covers_one_side_and_is_centred(height: int, width: int, ratio: float) -> None:
    """The box spans the shorter side (relative to the ratio) and sits in the middle of the longer."""
    box = centred(height, width, ratio)
    assert box.height == height or box.width == width
    assert 0 < box.height <= height
    assert 0 < box.width <= width
    assert abs((height - box.height) - 2 * box.top) <= 1
    assert abs((width - box.width) - 2 * box.left) <= 1
    assert abs(box.width - box.height * ratio) <= max(1, ratio)


@given(height=sides, width=sides, seed=seeds)
def test_the_random_box_lies_inside(height: int, width: int, seed: int) -> None:
    """Whatever the size and the seed, the box has pixels and lies in the image."""
    box = random_resized(height, width, seed)
    assert box.height > 0
    assert box.width > 0
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width


def test_random_boxes_are_spread_as_promised() -> None:
    """Areas spread over 8 to 100 %, ratios over 3/4 to 4/3, flips over both, positions over the whole image."""
    boxes = [random_resized(400, 500, seed) for seed in range(4000)]
    areas = np.array([box.height * box.width / 200_000 for box in boxes])
    ratios = np.array([box.width / box.height for box in boxes])
    assert 0.07 < areas.min() < 0.10
    assert 0.90 < areas.max() <= 1.0
    assert 0.73 < ratios.min() < 0.77
    assert 1.30 < ratios.max() < 1.36
    assert min(box.left for box in boxes) == 0
    assert max(box.left + box.width for box in boxes) == 500
    assert 0.45 < np.mean([flipped(seed) for seed in range(4000)]) < 0.55
