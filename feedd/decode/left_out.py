"""What of a shard's fields is in no batch, or changed, where a user names no fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.decode.labels import is_label
from feedd.decode.recipe import lacking_library
from feedd.decode.stored import PICKLE
from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.values import FieldRecipe, ShardIndex


def left_out(index: ShardIndex, recipes: Sequence[FieldRecipe], *, named: bool = False) -> dict[NoticeKind, Amount]:
    """Return what recipes leave out, or change, of a shard's fields.

    Args:
        index: of the shard that told the fields.
        recipes: of all fields; they know how the shard stores them.
        named: the user named the fields: what is in none of them is meant to be left out.
    """
    read = {source for recipe in recipes for source in recipe.sources}
    unscaled = [f"{name}: {kind}" for name, kind in index.unread if name.lower() in read and kind.find("decimal") >= 0]
    if named:
        return _amounts({NoticeKind.UNSCALED_DECIMALS: unscaled})
    others = [number for number, name in enumerate(index.fields) if name not in read and not is_label(name)]
    pickled = [index.fields[number] for number in others if index.stored_as(number) == PICKLE]
    unread = [text for name, kind in index.unread if (text := f"{name}: {kind}") not in unscaled]
    found = {
        NoticeKind.UNREAD_COLUMNS: unread,
        NoticeKind.UNSCALED_DECIMALS: unscaled,
        NoticeKind.PICKLED_COLUMNS: pickled,
        NoticeKind.RESERVED_NAMES: [index.fields[number] for number in others if index.fields[number] not in pickled],
        NoticeKind.UNDECODED_FIELDS: [recipe.name for recipe in recipes if lacking_library(recipe)],
        NoticeKind.NARROWED_NUMBERS: [
            recipe.name for recipe in recipes if recipe.codec == "float" and recipe.stored == "float64"
        ],
    }
    return _amounts(found)


def _amounts(found: Mapping[NoticeKind, Sequence[str]]) -> dict[NoticeKind, Amount]:
    return {kind: Amount(len(names), 0, tuple(names[:EXAMPLES_MAX])) for kind, names in found.items() if names}
