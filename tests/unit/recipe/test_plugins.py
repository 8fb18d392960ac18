"""Codecs and transforms that somebody else installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import structlog.testing

from feedd.codecs.codec_registry import make
from feedd.codecs.transforms.sample_rng import Draws
from feedd.errors import BadRecipe
from feedd.recipe import plugins
from feedd.recipe.params import params_of
from feedd.recipe.recipe import needs_measure, parse_field, spec_of
from feedd.values import FieldKind, FieldRecipe
from tests.fakes.plugins import install_plugins
from tests.fakes.transforming import PHOTO, png, recipe, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _forget() -> None:
    for cache in (plugins.names, plugins.load, plugins._created):
        cache.cache_clear()
    sys.modules.pop("feedd_fake_plugins", None)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with two plug-ins that work and two that do not."""
    monkeypatch.syspath_prepend(str(install_plugins(tmp_path / "site")))
    _forget()
    yield
    _forget()


def test_a_codec_is_named_like_any_other() -> None:
    """Its options go to its factory, its spec is the field's, and it decodes."""
    field = parse_field("x", '{"decode": "first_bytes", "count": 3, "dtype": "int16"}')
    assert spec_of(field).shape == (3,)
    assert spec_of(field).dtype == "int16"
    assert not needs_measure(field)
    out = np.zeros(3, np.int16)
    make(field).decode(memoryview(b"abcdef"), out, 0)
    assert out.tolist() == [97, 98, 99]
    assert spec_of(parse_field("x", "first_bytes")).shape == (2,)
    ragged = parse_field("x", '{"decode": "first_bytes", "ragged": true}')
    assert needs_measure(ragged)
    assert spec_of(ragged).kind is FieldKind.RAGGED


def test_how_its_options_are_written_does_not_matter() -> None:
    """Equal options are equal text, for the fingerprint rests on it."""
    one = parse_field("x", '{"decode": "first_bytes", "count": 3, "dtype": "int16"}')
    assert one == parse_field("x", '{"dtype": "int16", "count": 3, "decode": "first_bytes"}')


def test_a_transform_is_one_of_the_list() -> None:
    """It knows its outcome before anything is decoded, and gets a seed of its own."""
    tile = {"op": "tile", "times": 3}
    fixed = parse_field("x", recipe({"op": "resize", "size": [4, 5]}, tile, "horizontal_flip"))
    assert spec_of(fixed).shape == (4, 15, 3)
    got = run(PHOTO, {"op": "vertical_flip", "p": 0}, tile, seed=7)
    expected = np.tile(PHOTO, (1, 3, 1))
    expected[0, 0] = Draws(7, 1).seed % 251
    np.testing.assert_array_equal(got, expected)


def test_nothing_is_loaded_before_it_is_named() -> None:
    """Knowing the names takes no import, so the daemon's start costs nothing."""
    assert plugins.names(plugins.CODECS) == ("first_bytes", "gone")
    assert plugins.names(plugins.TRANSFORMS) == ("lost", "tile")
    parse_field("x", "int")
    assert "feedd_fake_plugins" not in sys.modules


def test_what_does_not_load_is_one_log_line_and_an_error_at_open() -> None:
    """Asked for three times, a broken entry point is logged once and refused each time, with the reason."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(BadRecipe, match=r"'gone' of feedd.codecs to load, got ModuleNotFoundError"):
                parse_field("x", "gone")
            with pytest.raises(BadRecipe, match=r"'lost' of feedd.transforms to load, got AttributeError"):
                parse_field("x", recipe("lost"))
    assert [(entry["log_level"], entry["name"]) for entry in logs] == [("error", "gone"), ("error", "lost")]
    with pytest.raises(BadRecipe, match="to load"):
        make(FieldRecipe("x", ("x",), "gone", '{"name": "gone"}'))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"decode": "first_bytes", "count": 0}', "count of 1 or more"),
        ('{"decode": "first_bytes", "size": 1}', "unexpected keyword"),
        ('{"decode": "first_bytes", "dtype": "complex64"}', "one of the dtypes"),
        ('{"decode": "first_bytes", "count": 2000000000}', "at most"),
        (recipe({"op": "tile", "tiems": 1}), "unexpected keyword"),
        (recipe({"op": "tile", "broken": True}), "no shape at all"),
        (recipe({"op": "tile", "times": 1_000_000_000}, size=[8, 8]), "pixels"),
        (recipe("tile", dtype="uint16"), "expected uint8"),
        (recipe("nothing"), "tile"),
        ('{"decode": "nothing"}', "first_bytes"),
    ],
)
def test_what_it_does_not_take_is_said(text: str, says: str) -> None:
    """Options, shapes and types that a plug-in refuses, or gets wrong, are a BadRecipe; so are unknown names."""
    with pytest.raises(BadRecipe, match=says):
        parse_field("x", text)


def test_our_own_names_win() -> None:
    """A plug-in cannot take the place of a codec of ours."""
    assert params_of(parse_field("x", "int")).spec("x").dtype == "int64"
    assert make(parse_field("x", "image")).measure(memoryview(png(PHOTO))) == PHOTO.shape
