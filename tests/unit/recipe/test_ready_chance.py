"""Nothing that is left to chance is done ahead: of all transforms there are, and of what operators install."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from feedd.codecs.codec_registry import make
from feedd.recipe import plugins
from feedd.recipe.params import canonical
from feedd.recipe.predecoded import ready_prefix
from feedd.recipe.recipe import parse_field, spec_of
from feedd.recipe.transform_params import FOR_IMAGES
from feedd.values import FieldRecipe
from tests.fakes.plugins import install_plugins
from tests.fakes.tars import natural_image
from tests.fakes.transforming import png

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEEDS: Final = 24
EACH: Final[dict[str, dict[str, Any]]] = {
    "cast": {"dtype": "float32"},
    "center_crop": {"size": 20},
    "channels_first": {},
    "color_jitter": {"brightness": 0.4},
    "grayscale": {"p": 0.5, "channels": 3},
    "horizontal_flip": {},
    "normalize": {"mean": [0.5], "std": [0.25]},
    "pad": {"padding": 2},
    "rand_augment": {},
    "random_crop": {"size": 20},
    "random_resized_crop": {"size": 20},
    "resize": {"size": 20},
    "tile": {},
    "vertical_flip": {},
}
"""One of each, such that chance shows in what comes out, if there is any."""
CHANCE: Final = frozenset(EACH) - {"cast", "center_crop", "channels_first", "normalize", "pad", "resize"}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install transforms, of which ``tile`` is left to chance."""

    def forget() -> None:
        for cache in (plugins.names, plugins.load, plugins._created):
            cache.cache_clear()
        sys.modules.pop("feedd_fake_plugins", None)

    monkeypatch.syspath_prepend(str(install_plugins(tmp_path / "site")))
    forget()
    yield
    forget()


def outcomes(recipe: FieldRecipe) -> set[bytes]:
    """Return what one image becomes by many seeds."""
    data = memoryview(png(natural_image(np.random.default_rng(3), 40, 50)))
    codec = make(recipe)
    out = np.empty(codec.measure(data), spec_of(recipe).dtype)
    found = set()
    for seed in range(SEEDS):
        codec.decode(data, out, seed)
        found.add(out.tobytes())
    return found


def test_each_transform_is_looked_at() -> None:
    """One that is new says above whether it is left to chance."""
    assert {*FOR_IMAGES, "tile"} == set(EACH)
    assert "tile" in plugins.names(plugins.TRANSFORMS)


@pytest.mark.parametrize("name", sorted(EACH))
def test_what_differs_by_seed_is_not_done_ahead(name: str) -> None:
    """Whatever makes several images of one ends what is kept; what is kept is the same for every seed."""
    one = {"op": name, **EACH[name]}
    recipe = parse_field(
        "png", json.dumps({"decode": "image", "transforms": [{"op": "resize", "size": [30, 34]}, one]})
    )
    assert (len(outcomes(recipe)) > 1) == (name in CHANCE)
    found = ready_prefix(recipe)
    assert found is not None
    if name in CHANCE:
        assert (found.done, found.whole) == (1, False)
    ahead = FieldRecipe("png", ("png",), "image", canonical(found.params))
    assert len(outcomes(ahead)) == 1


@pytest.mark.parametrize("name", sorted(CHANCE - {"tile"}))
@pytest.mark.parametrize("p", [0.0, 0.01, 0.99, 1.0])
def test_however_likely(name: str, p: float) -> None:
    """A probability does not make it sure, unless it is all or nothing."""
    if "p" not in FOR_IMAGES[name].__struct_fields__:
        return
    one = {"op": name, **EACH[name], "p": p}
    recipe = parse_field(
        "png", json.dumps({"decode": "image", "transforms": [{"op": "resize", "size": [30, 34]}, one]})
    )
    found = ready_prefix(recipe)
    assert found is not None
    assert found.done == 1 or p in {0.0, 1.0}
