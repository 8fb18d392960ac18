"""What holds for all transforms: numbers, streams of chance, odd sizes, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from feedd.codecs.codec_registry import make
from feedd.codecs.transforms.crop import bits, uniform
from feedd.codecs.transforms.sample_rng import Draws
from feedd.errors import BadRecipe, BadSample
from feedd.recipe.recipe import parse_field, spec_of
from tests.fakes.transforming import PHOTO, SEEDS, png, recipe, run

if TYPE_CHECKING:
    from numpy.typing import NDArray


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalize_is_what_torchvision_computes(dtype: str) -> None:
    """Bytes over 255 less mean over std, per channel; rounded once."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = ((PHOTO / 255 - np.array(mean)) / np.array(std)).astype(dtype)
    got = run(PHOTO, {"op": "normalize", "mean": mean, "std": std, "dtype": dtype})
    np.testing.assert_allclose(got, expected, rtol=2e-3 if dtype == "float16" else 1e-6, atol=1e-6)
    deep = PHOTO.astype(np.uint16)[:, :, 0] * 200
    half = {"op": "normalize", "mean": [0.5], "std": [0.5]}
    got = run(deep, half, mode="gray", dtype="uint16")
    np.testing.assert_allclose(got[:, :, 0], deep / 65535 * 2 - 1, atol=1e-6)
    twice = run(PHOTO, {"op": "cast", "dtype": "float32"}, half)
    np.testing.assert_allclose(twice, PHOTO * 2.0 - 1, rtol=1e-6)


def test_channels_first_and_cast() -> None:
    """Channels come first last of all; casting keeps numbers, and refuses those that do not fit."""
    size = {"op": "resize", "size": [4, 5]}
    got = run(PHOTO, {"op": "cast", "dtype": "int32"}, "channels_first")
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, PHOTO.transpose(2, 0, 1))
    field = parse_field("x", recipe(size, "channels_first"))
    assert spec_of(field).shape == (3, 4, 5)
    with pytest.raises(BadSample, match="fit int8"):
        run(np.full((2, 2, 3), 200, np.uint8), {"op": "cast", "dtype": "int8"})


def number(text: str, data: bytes) -> NDArray[Any]:
    """Decode one number."""
    field = parse_field("cls", text)
    codec, spec = make(field), spec_of(field)
    out = np.ones(spec.shape, spec.dtype)
    assert codec.measure(memoryview(data)) == spec.shape
    codec.decode(memoryview(data), out, 0)
    return out


def test_labels_become_one_hot_rows() -> None:
    """A label is a row of zeros and a one, in the dtype asked for; others are bad samples."""
    text = '{"decode": "int", "transforms": [{"op": "one_hot", "classes": 4}]}'
    np.testing.assert_array_equal(number(text, b"2"), np.array([0, 0, 1, 0], np.float32))
    cast = '{"decode": "int", "transforms": [{"op": "one_hot", "classes": 2}, {"op": "cast", "dtype": "uint8"}]}'
    assert number(cast, b"1").dtype == np.uint8
    for label in (b"4", b"-1"):
        with pytest.raises(BadSample, match="label of 0 to 3"):
            number(text, label)


def test_numbers_are_cast() -> None:
    """Integers and floats in any numeric dtype, where they fit it."""
    assert number('{"decode": "int", "transforms": [{"op": "cast", "dtype": "int16"}]}', b"-300") == np.int16(-300)
    half = number('{"decode": "float", "transforms": [{"op": "cast", "dtype": "float16"}]}', b"0.5")
    assert half == np.float16(0.5)
    assert number('{"decode": "float", "transforms": [{"op": "cast", "dtype": "uint8"}]}', b"254.6") == 255
    for text in (b"255.6", b"-1", b"nan", b"inf"):
        with pytest.raises(BadSample, match="fit uint8"):
            number('{"decode": "float", "transforms": [{"op": "cast", "dtype": "uint8"}]}', text)
    with pytest.raises(BadSample, match="fit uint64"):
        number('{"decode": "float", "transforms": [{"op": "cast", "dtype": "uint64"}]}', b"18446744073709551616")


# ---------------------------------------------------------------- chance, sizes, refusals


def test_streams_are_as_documented() -> None:
    """Place and seed make the stream: draw 64 + place of the sample's, whole, is the seed of the transform's own."""
    for seed in SEEDS:
        for place in (0, 3):
            assert Draws(seed, place).seed == bits(seed, 64 + place)
            assert Draws(seed, place).uniform(5) == uniform(bits(seed, 64 + place), 5)
    assert bits(0, 0) == 0xE220A8397B1DCDAF  # splitmix64's first number for seed 0, as published


def test_what_a_transform_draws_does_not_depend_on_the_others() -> None:
    """Replacing one transform leaves the draws of those behind it as they were."""
    crop = {"op": "random_crop", "size": 20}
    for seed in SEEDS:
        one = run(PHOTO, {"op": "horizontal_flip", "p": 0}, crop, seed=seed)
        np.testing.assert_array_equal(one, run(PHOTO, {"op": "color_jitter"}, crop, seed=seed))


EVERY: Final = (
    ({"op": "resize", "size": 4},),
    ({"op": "resize", "size": [3, 5]},),
    ({"op": "resize", "size": [3, 5], "fit": "inside"},),
    ({"op": "resize", "size": [5, 3], "interpolation": "cubic"},),
    ({"op": "center_crop", "size": 4},),
    ({"op": "random_crop", "size": 4, "padding": 1},),
    ({"op": "random_resized_crop", "size": 4},),
    ({"op": "pad", "padding": 2, "mode": "reflect"},),
    ("horizontal_flip", "vertical_flip"),
    ("grayscale",),
    ({"op": "color_jitter", "brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 0.5},),
    ({"op": "rand_augment", "count": 8, "magnitude": 20},),
    ({"op": "normalize", "mean": [0.5], "std": [0.5], "dtype": "float16"}, "channels_first"),
)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (1, 3000), (3000, 1)])
@pytest.mark.parametrize("transforms", EVERY, ids=str)
def test_the_oddest_sizes_come_through(transforms: tuple[object, ...], shape: tuple[int, int]) -> None:
    """One pixel, one row, one column and extreme shapes have the shape that was measured, for any seed and mode."""
    image = np.resize(PHOTO, (*shape, 3))
    for seed in (1, 5):
        for options in ({}, {"mode": "gray"}):
            run(image, *transforms, seed=seed, **options)


def test_transforms_that_would_make_bombs_are_bad_samples() -> None:
    """A shape so extreme that its shorter side cannot be resized is refused, first in the list or later."""
    thin = np.zeros((1, 40_000, 3), np.uint8)
    for before in ((), ({"op": "pad", "padding": 0},)):
        with pytest.raises(BadSample, match="pixels after a transform"):
            run(thin, *before, {"op": "resize", "size": 2048})
        codec = make(
            parse_field("x", recipe(*before, {"op": "resize", "size": 2048}, {"op": "center_crop", "size": 8}))
        )
        with pytest.raises(BadSample, match="pixels after a transform"):
            codec.decode(memoryview(png(thin)), np.empty((8, 8, 3), np.uint8), 0)


@pytest.mark.parametrize(
    ("transforms", "says"),
    [
        ([{"op": "blur"}], r"resize, center_crop, .*channels_first"),
        (["resise"], "rand_augment"),
        ([{"op": "resize", "sise": 3}], r"among size, fit, interpolation, got sise"),
        ([{"op": "resize"}], "size"),
        ([{"op": "resize", "size": 0}], "sides of 1"),
        ([{"op": "resize", "size": 8, "fit": "inside"}], "height and width"),
        ([{"op": "resize", "size": [2, 3, 4]}], "size"),
        ([{"op": "pad", "padding": [1, 2, 3]}], "1, 2 or 4 paddings"),
        ([{"op": "horizontal_flip", "p": 2}], "p to rise"),
        ([{"op": "random_resized_crop", "size": 4, "scale": [0.5, 0.1]}], "scale"),
        ([{"op": "random_resized_crop", "size": 4, "ratio": [0, 1]}], "ratio"),
        ([{"op": "color_jitter", "hue": 0.6}], "hue"),
        ([{"op": "color_jitter", "contrast": [2, 1]}], "contrast"),
        ([{"op": "rand_augment", "magnitude": 31}], "magnitude"),
        ([{"op": "normalize", "mean": [0.5, 0.5], "std": [1, 1]}], "3 channels"),
        ([{"op": "normalize", "mean": [0.5], "std": [0]}], "std without 0"),
        ([{"op": "normalize", "mean": [0.5], "std": [1]}, "color_jitter"], "uint8 before this"),
        (["channels_first", "horizontal_flip"], "channels_first"),
        ([{"op": "cast", "dtype": "int8"}, {"op": "resize", "size": 3}], "before this transform, got int8"),
        ([{"op": "grayscale", "p": 0.5}], "3 channels"),
        ([{"op": "one_hot", "classes": 3}], "one of the transforms"),
        ([3], "a transform like"),
        ("resize", "list of transforms"),
    ],
)
def test_wrong_parameters_say_what_there_is(transforms: object, says: str) -> None:
    """Unknown transforms, options and values are a BadRecipe that names the field and what would do."""
    with pytest.raises(BadRecipe, match=says) as caught:
        parse_field("x", json.dumps({"decode": "image", "transforms": transforms}))
    assert caught.value.object == "x"
    assert "\n" not in str(caught.value)


def test_only_labels_become_one_hot() -> None:
    """Floats have no classes, and numbers no sizes."""
    for text in (
        '{"decode": "float", "transforms": [{"op": "one_hot", "classes": 3}]}',
        '{"decode": "int", "transforms": [{"op": "resize", "size": 3}]}',
        '{"decode": "int", "transforms": [{"op": "one_hot", "classes": 0}]}',
        '{"decode": "str", "transforms": []}',
    ):
        with pytest.raises(BadRecipe):
            parse_field("x", text)


def test_fields_are_renamed() -> None:
    """``as`` is the key in the batch; the name stays what is looked for."""
    field = parse_field("jpg;png", '{"decode": "image", "as": "picture"}')
    assert (field.name, field.sources) == ("picture", ("jpg", "png"))
    for bad in ("3", '""', '"__key__"'):
        with pytest.raises(BadRecipe, match="as"):
            parse_field("jpg", f'{{"decode": "image", "as": {bad}}}')


def test_equal_recipes_have_equal_parameters() -> None:
    """However a transform is spelt, and whatever defaults are said aloud, the fingerprint is the same."""
    crop = {"op": "random_resized_crop", "size": 8}
    loud = {**crop, "scale": [0.08, 1], "interpolation": "auto"}
    assert parse_field("x", recipe(crop)) == parse_field("x", recipe(loud))
    short = parse_field("x", recipe("horizontal_flip", {"op": "resize", "size": 8}))
    long = parse_field("x", recipe({"p": 0.5, "op": "horizontal_flip"}, {"fit": "exact", "size": 8, "op": "resize"}))
    assert short == long
    assert parse_field("x", recipe("vertical_flip")) != parse_field("x", recipe("horizontal_flip"))
