"""Each transform held against Pillow, or against plain NumPy that says what must come out."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from feedd.codecs.transforms import augment, colors, geometry
from feedd.codecs.transforms.crop import random_resized, window
from feedd.codecs.transforms.sample_rng import Draws
from tests.fakes.transforming import PHOTO, SEEDS, SMOOTH, run

if TYPE_CHECKING:
    from numpy.typing import NDArray


def apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Mean absolute difference."""
    assert one.shape == other.shape
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).mean())


# ---------------------------------------------------------------- geometry


@pytest.mark.parametrize("size", [24, 48, 80])
def test_resize_by_one_number_is_the_shorter_side(size: int) -> None:
    """The longer side keeps the shape, cut to whole pixels; the picture is Pillow's bilinear one."""
    for image in (SMOOTH, np.ascontiguousarray(SMOOTH.swapaxes(0, 1))):
        got = run(image, {"op": "resize", "size": size})
        height, width = image.shape[:2]
        shorter = min(height, width)
        assert got.shape == (int(size * height / shorter), int(size * width / shorter), 3)
        how = Image.Resampling.BOX if size * 2 < shorter else Image.Resampling.BILINEAR
        reference = Image.fromarray(image).resize((got.shape[1], got.shape[0]), how)
        assert apart(got, np.asarray(reference)) < 3


def test_resize_exactly_and_inside() -> None:
    """Two numbers are height and width; inside them the picture keeps its shape, up or down."""
    assert run(PHOTO, {"op": "resize", "size": [10, 90]}).shape == (10, 90, 3)
    for size, expected in (([24, 64], (24, 32)), ([96, 64], (48, 64)), ([96, 128], (96, 128))):
        assert run(PHOTO, {"op": "resize", "size": size, "fit": "inside"}).shape[:2] == expected
    enlarged = run(PHOTO, {"op": "resize", "size": [96, 128], "interpolation": "nearest"})
    np.testing.assert_array_equal(enlarged, PHOTO.repeat(2, axis=0).repeat(2, axis=1))


def test_center_crop_cuts_and_fills() -> None:
    """The middle of what is large enough; what is not gets a border of ``fill``, as torchvision's."""
    np.testing.assert_array_equal(run(PHOTO, {"op": "center_crop", "size": [20, 30]}), PHOTO[14:34, 17:47])
    got = run(PHOTO[:3, :4], {"op": "center_crop", "size": 6, "fill": 9})
    expected = np.full((6, 6, 3), 9, np.uint8)
    expected[1:4, 1:5] = PHOTO[:3, :4]
    np.testing.assert_array_equal(got, expected)


def test_random_crops_are_parts_and_reach_every_place() -> None:
    """A crop is a window of the padded image, at the place that draws 0 and 1 say; all places come."""
    small = PHOTO[:6, :7]
    padded = np.pad(small, ((2, 2), (1, 1), (0, 0)))
    places = set()
    for seed in range(200):
        got = run(small, {"op": "random_crop", "size": 5, "padding": [1, 2]}, seed=seed)
        draws = Draws(seed, 0)
        top, left = int(draws.uniform(0) * 6), int(draws.uniform(1) * 5)
        np.testing.assert_array_equal(got, padded[top : top + 5, left : left + 5])
        places.add((top, left))
    assert len(places) == 30
    grown = run(small, {"op": "random_crop", "size": 9, "fill": 3}, seed=1)
    np.testing.assert_array_equal(grown, np.pad(small, ((1, 2), (1, 1), (0, 0)), constant_values=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_resized_crops_are_the_seeds_box(seed: int) -> None:
    """Scale and ratio bound the box; first in the list or later, it is the box of its own stream."""
    one = {"op": "random_resized_crop", "size": [40, 50], "scale": [0.2, 0.5], "ratio": [1, 2]}
    for place in (0, 1):
        got = run(SMOOTH, *(["vertical_flip"] * place), one, seed=seed)
        image = SMOOTH[::-1] if place and Draws(seed, 0).uniform(0) < 0.5 else SMOOTH
        box = random_resized(240, 320, Draws(seed, place).seed, window((0.2, 0.5), (1.0, 2.0)))
        assert 0.19 < box.height * box.width / (240 * 320) < 0.51
        assert 0.97 < box.width / box.height < 2.03
        part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        reference = Image.fromarray(part).resize((50, 40), Image.Resampling.BILINEAR)
        assert apart(got, np.asarray(reference)) < 4


def test_pads_are_numpys() -> None:
    """Constant, edge and reflect, for one, two and four widths."""
    for mode in ("constant", "edge", "reflect"):
        for padding, edges in ((2, (2, 2, 2, 2)), ([1, 3], (1, 3, 1, 3)), ([1, 2, 3, 4], (1, 2, 3, 4))):
            left, top, right, bottom = edges
            fill = {"constant_values": 5} if mode == "constant" else {}
            expected = np.pad(PHOTO, ((top, bottom), (left, right), (0, 0)), mode, **fill)  # type: ignore[call-overload]  # the stub knows no mode that is a variable
            got = run(PHOTO, {"op": "pad", "padding": padding, "fill": 5, "mode": mode})
            np.testing.assert_array_equal(got, expected)


def test_flips_follow_their_chance() -> None:
    """Never with 0, always with 1, about every other time with a half; each by its own stream."""
    always = {"op": "horizontal_flip", "p": 1}, {"op": "vertical_flip", "p": 1}
    np.testing.assert_array_equal(run(PHOTO, *always), PHOTO[::-1, ::-1])
    np.testing.assert_array_equal(run(PHOTO, {"op": "horizontal_flip", "p": 0}), PHOTO)
    seen = [run(PHOTO[:2, :3], "horizontal_flip", "vertical_flip", seed=seed).tobytes() for seed in range(80)]
    counts = [seen.count(state) for state in sorted(set(seen))]
    assert len(counts) == 4
    assert min(counts) > 8


# ---------------------------------------------------------------- colours


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_enhancements_are_pillows(factor: float) -> None:
    """Brightness, contrast, saturation and sharpness differ from Pillow's by a rounding at most."""
    picture = Image.fromarray(PHOTO)
    for change, reference in (
        (colors.brighter, ImageEnhance.Brightness),
        (colors.contrasted, ImageEnhance.Contrast),
        (colors.saturated, ImageEnhance.Color),
        (colors.sharpened, ImageEnhance.Sharpness),
    ):
        expected = np.asarray(reference(picture).enhance(factor)).astype(int)
        step = 2 if change is colors.saturated else 1  # luma and blend are each rounded
        assert np.abs(change(PHOTO, factor).astype(int) - expected).max() <= step, change.__name__


def test_hue_turns_the_circle() -> None:
    """Half a turn, and others, are what the colour model says of every pixel."""
    few = PHOTO[:6, :6]
    for turn in (-0.5, -0.2, 0.0, 0.1, 0.5):
        expected = np.empty(few.shape)
        for at in np.ndindex(6, 6):
            hue, light, much = colorsys.rgb_to_hsv(*(few[at] / 255))
            expected[at] = np.array(colorsys.hsv_to_rgb((hue + turn) % 1, light, much)) * 255
        assert np.abs(colors.hued(few, turn).astype(float) - expected).mean() < 2.5
        assert np.abs(colors.hued(few, turn).astype(float) - expected).max() < 12


def test_jitter_draws_factors_and_order() -> None:
    """One factor alone is that change by that draw; all four come in every order, by the seed."""
    for seed in SEEDS:
        low, high = 0.6, 1.4
        factor = low + (high - low) * Draws(seed, 0).uniform(1)
        got = run(PHOTO, {"op": "color_jitter", "contrast": 0.4}, seed=seed)
        np.testing.assert_array_equal(got, colors.contrasted(PHOTO, factor))
    np.testing.assert_array_equal(run(PHOTO, "color_jitter"), PHOTO)
    twice = run(PHOTO, {"op": "color_jitter", "brightness": [2, 2]})
    np.testing.assert_array_equal(twice, np.minimum(PHOTO.astype(int) * 2, 255))
    whole = {"op": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    assert len({run(PHOTO, whole, seed=seed).tobytes() for seed in range(20)}) == 20
    grey = run(PHOTO, whole, mode="gray")
    assert grey.shape == (48, 64, 1)


def test_grayscale_is_pillows_luma() -> None:
    """One channel, or three equal ones; with a chance, only sometimes."""
    expected = np.asarray(Image.fromarray(PHOTO).convert("L")).astype(int)
    got = run(PHOTO, "grayscale")
    assert got.shape == (48, 64, 1)
    assert np.abs(got[:, :, 0].astype(int) - expected).max() <= 1
    three = run(PHOTO, {"op": "grayscale", "channels": 3})
    np.testing.assert_array_equal(three, got.repeat(3, axis=2))
    some = [run(PHOTO, {"op": "grayscale", "channels": 3, "p": 0.3}, seed=seed) for seed in range(60)]
    assert 6 < sum(np.array_equal(one, three) for one in some) < 34
    assert all(np.array_equal(one, three) or np.array_equal(one, PHOTO) for one in some)


# ---------------------------------------------------------------- RandAugment


def test_table_changes_are_pillows() -> None:
    """Posterize, solarize, autocontrast and equalize give exactly Pillow's pixels, or one step beside them."""
    flat = np.full_like(PHOTO, 7)
    narrow = (PHOTO // 4 + 60).astype(np.uint8)
    for image in (PHOTO, narrow, flat, PHOTO[:1, :1]):
        picture = Image.fromarray(image)
        for number in (4, 6, 8):
            np.testing.assert_array_equal(
                augment.posterized(image, number), np.asarray(ImageOps.posterize(picture, number))
            )
        for threshold in (0, 100, 255):
            np.testing.assert_array_equal(
                augment.solarized(image, threshold), np.asarray(ImageOps.solarize(picture, threshold))
            )
        np.testing.assert_array_equal(augment.equalized(image), np.asarray(ImageOps.equalize(picture)))
        stretched = np.asarray(ImageOps.autocontrast(picture)).astype(int)
        assert np.abs(augment.auto_contrasted(image).astype(int) - stretched).max() <= 1


def test_moving_changes_are_pillows() -> None:
    """Shear, rotation and shifts take nearly all pixels from where Pillow takes them."""
    picture = Image.fromarray(PHOTO)
    size = picture.size
    pairs = (
        (geometry.rotated(PHOTO, 23), picture.rotate(23)),
        (geometry.rotated(PHOTO, -8), picture.rotate(-8)),
        (geometry.sheared(PHOTO, 0.21, 0), picture.transform(size, Image.Transform.AFFINE, (1, 0.21, 0, 0, 1, 0))),
        (geometry.sheared(PHOTO, 0, -0.31), picture.transform(size, Image.Transform.AFFINE, (1, 0, 0, -0.31, 1, 0))),
        (geometry.shifted(PHOTO, 9, -4), picture.transform(size, Image.Transform.AFFINE, (1, 0, -9, 0, 1, 4))),
        (geometry.shifted(PHOTO, -70, 0), picture.transform(size, Image.Transform.AFFINE, (1, 0, 70, 0, 1, 0))),
    )
    for got, reference in pairs:
        assert (got != np.asarray(reference)).any(axis=2).mean() < 0.03


def test_rand_augment_draws_all_its_changes() -> None:
    """Over many seeds each of the fourteen comes; magnitude 0 of the unsigned ones does nothing."""
    seen = {Draws(seed, 0).below(0, 14) for seed in range(200)}
    assert seen == set(range(14))
    results = {
        run(PHOTO, {"op": "rand_augment", "count": 1, "magnitude": 10}, seed=seed).tobytes() for seed in range(60)
    }
    assert len(results) > 14
    for mode in ("rgb", "gray"):
        for seed in range(40):
            assert run(PHOTO, {"op": "rand_augment", "count": 3, "magnitude": 30}, seed=seed, mode=mode).any()
