"""What of a shard's fields is in no batch, or changed, where a user names no fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.decode.labels import is_label
from feedd.decode.recipe import lacking_library
from feedd.decode.stored import PICKLE
from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import FieldRecipe, ShardIndex


def left_out(index: ShardIndex, recipes: Sequence[FieldRecipe]) -> dict[NoticeKind, Amount]:
    """Return what default recipes leave out, or change, of a shard's fields.

    Args:
        index: of the shard that told the fields.
        recipes: the default ones, which know how the shard stores their fields.
    """
    read = {source for recipe in recipes for source in recipe.sources}
    others = [number for number, name in enumerate(index.fields) if name not in read and not is_label(name)]
    pickled = [index.fields[number] for number in others if index.stored_as(number) == PICKLE]
    found = {
        NoticeKind.UNREAD_COLUMNS: [f"{name}: {kind}" for name, kind in index.unread],
        NoticeKind.PICKLED_COLUMNS: pickled,
        NoticeKind.RESERVED_NAMES: [index.fields[number] for number in others if index.fields[number] not in pickled],
        NoticeKind.UNDECODED_FIELDS: [recipe.name for recipe in recipes if lacking_library(recipe)],
        NoticeKind.NARROWED_NUMBERS: [
            recipe.name for recipe in recipes if recipe.codec == "float" and recipe.stored == "float64"
        ],
    }
    return {kind: Amount(len(names), 0, tuple(names[:EXAMPLES_MAX])) for kind, names in found.items() if names}
