"""Recipes with transforms, run on pictures that are encoded exactly."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from feedd.codecs.codec_registry import make
from feedd.recipe.recipe import needs_measure, parse_field, spec_of
from feedd.values import FieldKind
from tests.fakes.tars import natural_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

PHOTO: Final = natural_image(np.random.default_rng(9), 48, 64)
SMOOTH: Final = np.asarray(Image.fromarray(PHOTO).resize((320, 240), Image.Resampling.BICUBIC))
SEEDS: Final = (0, 1, 7, 2**64 - 1)


def png(image: NDArray[Any]) -> bytes:
    """Encode exactly."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def recipe(*transforms: object, **options: object) -> str:
    """Return the long form."""
    return json.dumps({"decode": "image", "transforms": list(transforms), **options})


def run(image: NDArray[Any], *transforms: object, seed: int = 0, **options: object) -> NDArray[Any]:
    """Decode ``image`` by a recipe with these transforms."""
    field = parse_field("x", recipe(*transforms, **options))
    codec = make(field)
    data = memoryview(png(image)).toreadonly()
    spec = spec_of(field)
    shape = codec.measure(data)
    assert spec.shape in {(), shape}
    assert needs_measure(field) == (spec.kind is FieldKind.RAGGED)
    out = np.zeros(shape, spec.dtype)
    codec.decode(data, out, seed)
    again = np.ones(shape, spec.dtype)
    make(field).decode(data, again, seed)
    np.testing.assert_array_equal(out, again)  # nothing but bytes and seed may matter
    return out
