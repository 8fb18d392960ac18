"""Reading shards without a daemon: index, recipes and codecs, as decode workers use them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.codecs.array import pin_npy
from feedd.codecs.codec_registry import make
from feedd.formats import format_registry as registry
from feedd.formats.inline_headers import header_reader
from feedd.recipe.recipe import check_fields, default_fields, needs_resolve, parse_field, with_encodings
from feedd.values import FieldKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe


def read(data: bytes, format_name: str, fields: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return every sample of a shard, decoded; without ``fields`` as the shard suggests."""
    index = registry.get(format_name).index(memoryview(data), "s3://b/shard")
    recipes = tuple(parse_field(*one) for one in fields.items()) if fields else ()
    recipes = recipes or default_fields(index.fields, index.encodings)
    check_fields(recipes, index.fields)
    recipes = tuple(_pinned(recipe, index, data) for recipe in with_encodings(recipes, index))
    codecs = {recipe.name: (make(recipe), index.fields.index(recipe.sources[0])) for recipe in recipes}
    return [
        {
            name: _value(codec, data[int(index.starts[column, n]) :][: int(index.sizes[column, n])])
            for name, (codec, column) in codecs.items()
            if index.sizes[column, n] >= 0
        }
        for n in range(index.sample_count)
    ]


def _pinned(recipe: FieldRecipe, index: ShardIndex, data: bytes) -> FieldRecipe:
    if not needs_resolve(recipe):
        return recipe
    column = index.fields.index(recipe.sources[0])
    sample = int(np.argmax(index.sizes[column] >= 0))
    start, size = int(index.starts[column, sample]), int(index.sizes[column, sample])
    return replace(recipe, params=pin_npy(memoryview(data)[start : start + size], header_reader(recipe.encoding)))


def _value(codec: Any, data: bytes) -> Any:
    """Return what a user gets."""
    spec = codec.spec("x")
    view = memoryview(data)
    out = np.empty(spec.shape if spec.kind is FieldKind.DENSE else codec.measure(view), spec.dtype)
    codec.decode(view, out, 0)
    if spec.kind is FieldKind.TEXT:
        return out.tobytes().decode()
    return json.loads(out.tobytes()) if spec.kind is FieldKind.JSON else out
