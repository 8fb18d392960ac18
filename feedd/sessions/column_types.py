"""Which types the columns of text have: those of a dataset's first shard, or what a recipe says, in every shard.

So it is with the sign between values. Text does not say them, and a guess per shard may differ from the last one's.
What tells them is a pure function of the listing and the recipe, so that all nodes say the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.cache.pinned_reads import with_pinned
from feedd.catalog.wanted_columns import possible_columns
from feedd.convert.columnar import typed_params
from feedd.convert.conversion_registry import DELIMITED, split
from feedd.convert.long_params import PARAMS_BYTES_MAX, is_long
from feedd.convert.table_converters import DELIMITER, TYPES
from feedd.dataset.listing import view_of
from feedd.errors import BadRecipe, CacheUnavailable
from feedd.flow.pools import CACHE_DISK, CPU
from feedd.recipe.params import params_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.dataset.listing import Listing
    from feedd.protocols import ShardCache
    from feedd.values import FieldRecipe, ObjectRef, ShardFile

_LOOKED_AT: Final = 8
"""Shards of a source that are asked for the types of columns that the first one has no values of."""

_TYPES_BYTES_MAX: Final = 16 << 20
_NULL: Final = "null"
_NUMBERS: Final = frozenset({"int64", "double", _NULL})
_TEXT: Final = frozenset({"str", "json", "tokenize"})
_ARROW: Final = {"float32": "float", "float64": "double"}
_ASIDE: Final = frozenset({"bytes"})
"""Codecs that say nothing of a type: they take what there is."""


async def typed(cache: ShardCache, listing: Listing, wanted: Sequence[Sequence[FieldRecipe]]) -> Listing:
    """Return a listing whose shards of text have columns of the same types, whichever shard they are in.

    Args:
        cache: where shards are.
        listing: narrowed to the columns that are wanted.
        wanted: recipes of each source; of one without any all columns are.

    Raises:
        BadRecipe: a column has no values in the first shards, and its recipe does not tell its type. Or there are too
            many columns.
        Whatever the cache raises of those shards.
    """
    firsts = await CPU.run(_firsts, listing, len(wanted))
    if not any(firsts):
        return listing
    params = [await _params(cache, refs, recipe) if refs else "" for refs, recipe in zip(firsts, wanted, strict=True)]
    return await CPU.run(_formed, listing, params)


def type_of(told: str, recipes: Sequence[FieldRecipe]) -> str:
    """Return the type that a column is read with; ``null``: nothing tells it.

    Text where a recipe wants text, and no other wants anything else; the dtype that recipes name, of numbers; else what
    the first shard tells.

    Args:
        told: by the dataset's first shard that has values of it.
        recipes: of the fields that read the column.
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


def _firsts(listing: Listing, sources: int) -> list[list[ObjectRef]]:
    """Return the first shards of text of each source, as what tells their columns' types."""
    found: list[list[ObjectRef]] = []
    for source in range(sources):
        refs: list[ObjectRef] = []
        for shard in listing.shards_of(source):
            ref = listing.refs[shard]
            name = split(ref.form)[0]
            if name in DELIMITED and ref.size_bytes:
                refs.append(replace(ref, form=f"{name}:{TYPES}"))
                if len(refs) == _LOOKED_AT:
                    break
        found.append(refs)
    return found


async def _params(cache: ShardCache, refs: Sequence[ObjectRef], recipe: Sequence[FieldRecipe]) -> str:
    """Return the parameters of a source's form; empty: it has no columns."""
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
            f"expected values of column {unknown[0]!r} in one of the first {len(refs)} shards, got none in any",
            object=refs[0].url,
            hint='say in fields what it is: "int", "float" or "str"',
            stage="decode",
        )
    types |= dict.fromkeys(unknown, "string")  # of which nobody asked anything: text is what every value can be
    return _short(possible_columns(recipe), types, "".join(signs[:1]))


def _short(asked: Sequence[Sequence[str]], types: Mapping[str, str], sign: str) -> str:
    """Return parameters that tell all types: of many columns the commonest type once, and the rest by a digest.

    Raises:
        BadRecipe: there are too many.
    """
    if not types:
        return ""
    if sum(map(len, types)) < PARAMS_BYTES_MAX:
        params = typed_params(asked, types, delimiter=sign)
        if not is_long(params):
            return params
    ((other, _),) = Counter(types.values()).most_common(1)
    return typed_params(asked, {name: kind for name, kind in types.items() if kind != other}, other, sign)


def _formed(listing: Listing, params: Sequence[str]) -> Listing:
    refs = list(listing.refs)
    for source, text in enumerate(params):
        if text:
            for shard in listing.shards_of(source):
                name = split(refs[shard].form)[0]
                if name in DELIMITED:
                    refs[shard] = replace(refs[shard], form=f"{name}:{text}")
    return view_of(listing, tuple(refs), (*listing.view, *params))


def _read(file: ShardFile) -> dict[str, str]:
    try:
        with Path(file.path).open("rb") as shard:
            shard.seek(file.data_at)
            text = shard.read(min(file.ref.size_bytes, _TYPES_BYTES_MAX))
        return msgspec.json.decode(text, type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"expected types of columns in {file.path}, got {error}"
        raise CacheUnavailable(message, object=file.ref.url, stage="cache") from error
