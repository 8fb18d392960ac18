"""Column types of text shards: one type for a column in all shards, from the recipe or from the dataset's first shard.

The delimiter is handled in the same way. CSV does not state types, and a guess per shard may differ between shards.
Types are a pure function of the listing and the recipe, so all nodes get the same ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.cache.pins import with_pinned
from feedd.catalog.wanted_columns import possible_columns
from feedd.conversion import PARAMS_BYTES_MAX, Conversion
from feedd.errors import BadRecipe, CacheUnavailable
from feedd.flow.pools import CACHE_DISK, CPU
from feedd.recipe.params import params_of
from feedd.tables.columns import DELIMITER, TYPES, typed_params
from feedd.tables.registry import is_delimited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.dataset.listing import DatasetView
    from feedd.protocols import ShardCache
    from feedd.values import FieldRecipe, ObjectRef, ShardFile

_LOOKED_AT: Final = 8
"""At most this many shards of a source are read to find the type of a column that has no values in the first ones."""

_TYPES_BYTES_MAX: Final = 16 << 20
_NULL: Final = "null"
_NUMBERS: Final = frozenset({"int64", "double", _NULL})
_TEXT: Final = frozenset({"str", "json", "tokenize"})
_ARROW: Final = {"float32": "float", "float64": "double"}
_ASIDE: Final = frozenset({"bytes"})
"""Codecs that accept columns of every type."""


async def typed(cache: ShardCache, view: DatasetView, wanted: Sequence[Sequence[FieldRecipe]]) -> DatasetView:
    """Return a view whose text shards all read a column with the same type.

    Args:
        cache: holds the shards.
        view: restricted to the wanted columns.
        wanted: the recipes of each source; a source without recipes reads all its columns.

    Raises:
        BadRecipe: a column has no values in the first shards and its recipe does not name a type, or there are too many
            columns.
        Whatever the cache raises for those shards.
    """
    firsts = await CPU.run(_firsts, view, len(wanted))
    if not any(firsts):
        return view
    params = [await _params(cache, refs, recipe) if refs else "" for refs, recipe in zip(firsts, wanted, strict=True)]
    return await CPU.run(_formed, view, params)


def type_of(told: str, recipes: Sequence[FieldRecipe]) -> str:
    """Return the type that a column is read with, or ``null`` if it is unknown.

    The type is text if all recipes that name a type read text. For numbers it is the dtype that the recipes name.
    Otherwise it is the type detected in the first shard.

    Args:
        told: type detected in the first shard of the dataset that has values in the column.
        recipes: recipes of the fields that read the column.
    """
    codecs = {"str" if getattr(params_of(one), "classes", ()) else one.codec for one in recipes} - _ASIDE
    if codecs and codecs <= _TEXT:
        return "string"
    if told not in _NUMBERS:
        return told
    if "int" in codecs:
        return "int64" if told == _NULL else told
    if "float" in codecs:
        return "double"
    dtypes = {dtype for recipe in recipes if (dtype := getattr(params_of(recipe), "dtype", ""))}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    return _ARROW.get(dtype, dtype) if dtype and dtype not in {"bool", "float16"} else told


def _firsts(view: DatasetView, sources: int) -> list[list[ObjectRef]]:
    """Return the first text shards of each source, as refs whose conversion detects the column types."""
    found: list[list[ObjectRef]] = []
    for source in range(sources):
        refs: list[ObjectRef] = []
        for shard in view.listing.shards_of(source):
            ref = view.refs[shard]
            if ref.conversion is not None and is_delimited(ref.conversion) and ref.size_bytes:
                refs.append(replace(ref, conversion=Conversion(ref.conversion.name, TYPES)))
                if len(refs) == _LOOKED_AT:
                    break
        found.append(refs)
    return found


async def _params(cache: ShardCache, refs: Sequence[ObjectRef], recipe: Sequence[FieldRecipe]) -> str:
    """Return the parameters of a source's conversion, or an empty string if the source has no columns."""
    by_source: dict[str, list[FieldRecipe]] = {}
    for field in recipe:
        for source in field.sources:
            by_source.setdefault(source, []).append(field)
    types: dict[str, str] = {}
    signs: list[str] = []
    for ref in refs:
        told = await with_pinned(cache, [ref], lambda files: CACHE_DISK.run(_read, files[0]))
        sign = told.pop(DELIMITER, "")
        signs += [sign] if told else []
        for name, kind in told.items():
            if (name in by_source or not recipe) and types.get(name, _NULL) == _NULL:
                types[name] = type_of(kind, by_source.get(name, ()))
        if types and _NULL not in types.values():
            break
    unknown = [name for name, kind in types.items() if kind == _NULL]
    if unknown and recipe:
        raise BadRecipe(
            f"column {unknown[0]!r} has no values in the first {len(refs)} shards, so its type is unknown",
            object=refs[0].url,
            hint='specify its type in fields: "int", "float" or "str"',
            stage="decode",
        )
    types |= dict.fromkeys(unknown, "string")  # no recipe reads them, and text can hold every value
    return _short(possible_columns(recipe), types, "".join(signs[:1]))


def _short(asked: Sequence[Sequence[str]], types: Mapping[str, str], sign: str) -> str:
    """Return parameters that state all types. If there are many columns, the commonest type is stated once.

    Raises:
        BadRecipe: there are too many columns.
    """
    if not types:
        return ""
    if sum(map(len, types)) < PARAMS_BYTES_MAX:
        params = typed_params(asked, types, delimiter=sign)
        if len(params.encode()) <= PARAMS_BYTES_MAX:
            return params
    ((other, _),) = Counter(types.values()).most_common(1)
    return typed_params(asked, {name: kind for name, kind in types.items() if kind != other}, other, sign)


def _formed(view: DatasetView, params: Sequence[str]) -> DatasetView:
    refs = list(view.refs)
    for source, text in enumerate(params):
        if text:
            for shard in view.listing.shards_of(source):
                ref = refs[shard]
                if ref.conversion is not None and is_delimited(ref.conversion):
                    refs[shard] = replace(ref, conversion=Conversion(ref.conversion.name, text))
    return view.converted(refs, (*view.name, *params))


def _read(file: ShardFile) -> dict[str, str]:
    try:
        with Path(file.path).open("rb") as shard:
            shard.seek(file.data_at)
            text = shard.read(min(file.ref.size_bytes, _TYPES_BYTES_MAX))
        return msgspec.json.decode(text, type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"cannot read the column types in {file.path}: {error}"
        raise CacheUnavailable(message, object=file.ref.url, stage="cache") from error
