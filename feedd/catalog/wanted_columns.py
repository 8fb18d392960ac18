"""The columns of columnar objects that a session reads; they are part of the conversion of its shards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from feedd.conversion import PARAMS_BYTES_MAX, Conversion
from feedd.dataset.ref_columns import RefColumns
from feedd.tables.columns import ROWS_ONLY, params_of
from feedd.tables.converter import formed
from feedd.tables.registry import counts_apart, is_columnar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.dataset.listing import DatasetView
    from feedd.values import FieldRecipe, ObjectRef

_CHEAP_TO_COUNT: Final = frozenset({"arrow", "npz", "parquet"})


def narrowed(view: DatasetView, wanted: Sequence[Sequence[FieldRecipe]]) -> DatasetView:
    """Return a view whose columnar objects are converted with only the columns that recipes name.

    Sessions that name other columns of the same objects have other shards.

    Args:
        view: the objects as they were listed.
        wanted: recipes of each source; empty: all columns.
    """
    refs = view.refs
    conversions = refs.conversions if isinstance(refs, RefColumns) else (ref.conversion for ref in refs)
    if not any(map(_has_columns, conversions)):
        return view
    narrow: list[ObjectRef] = []
    name: list[str] = []
    for source, recipe in enumerate(wanted):
        asked = possible_columns(recipe)
        params = params_of(asked) if asked else ""
        name.append(params)
        narrow.extend(_of_columns(refs[shard], params) for shard in view.listing.shards_of(source))
    return view.converted(narrow, tuple(name), apart=any(counts_apart(ref.conversion) for ref in narrow))


def possible_columns(recipe: Sequence[FieldRecipe]) -> list[tuple[str, ...]]:
    """Return the possible column names of each field; empty: convert all columns (too many names)."""
    asked = [field.sources for field in recipe]
    return asked if len(params_of(asked).encode()) <= PARAMS_BYTES_MAX else []


def counting(refs: Sequence[ObjectRef], named: Mapping[int, str] | None = None) -> tuple[ObjectRef, ...]:
    """Return listed objects as shards for counting samples: without columns if that is cheaper.

    Args:
        refs: objects as listed.
        named: see ``formed``.
    """
    found = formed(refs, named)
    return tuple(
        replace(ref, conversion=Conversion(ref.conversion.name, ROWS_ONLY))
        if ref.conversion is not None and ref.conversion.name in _CHEAP_TO_COUNT
        else ref
        for ref in found
    )


def _of_columns(ref: ObjectRef, params: str) -> ObjectRef:
    if not params or ref.conversion is None or not _has_columns(ref.conversion):
        return ref
    return replace(ref, conversion=Conversion(ref.conversion.name, params))


def _has_columns(conversion: Conversion | None) -> bool:
    """Whether a conversion makes a table of all columns, as it does before a session names some."""
    return conversion is not None and not conversion.params and is_columnar(conversion)
