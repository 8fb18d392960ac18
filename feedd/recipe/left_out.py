"""Fields of shards that are left out of batches, or changed, if the user names no fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import BadRecipe
from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind
from feedd.recipe.encodings import PICKLE
from feedd.recipe.label_recipes import is_label
from feedd.recipe.recipe import default_fields, lacking_library, with_encodings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe

_NAMES_MAX: Final = 10_000


class LeftOutFields:
    """Fields of several shards that default recipes leave out or change; each field counts once."""

    def __init__(self) -> None:
        self._names: dict[NoticeKind, dict[str, None]] = {}

    def add(self, index: ShardIndex) -> None:
        """Add the fields of a shard. Nothing is added if default recipes fail, because then opening is an error."""
        try:
            recipes = with_encodings(default_fields(index.fields, index.encodings), index)
        except BadRecipe:
            return
        self._add(_names_left_out(index, recipes))

    def update(self, other: LeftOutFields) -> None:
        """Add the fields of other shards, which were collected apart."""
        self._add({kind: list(names) for kind, names in other._names.items()})

    @property
    def amounts(self) -> dict[NoticeKind, Amount]:
        """The number of fields of each kind."""
        return _amounts({kind: list(names) for kind, names in self._names.items()})

    def _add(self, found: Mapping[NoticeKind, Sequence[str]]) -> None:
        for kind, names in found.items():
            known = self._names.setdefault(kind, {})
            known.update(dict.fromkeys(names[: _NAMES_MAX - len(known)]))


def left_out(index: ShardIndex, recipes: Sequence[FieldRecipe], *, named: bool = False) -> dict[NoticeKind, Amount]:
    """Return the fields of a shard that recipes leave out or change.

    Args:
        index: index of the shard that determined the fields.
        recipes: recipes of all fields, with the shard's encodings.
        named: whether the user named the fields; unnamed fields are then left out on purpose.
    """
    found = _names_left_out(index, recipes)
    return _amounts({NoticeKind.UNSCALED_DECIMALS: found[NoticeKind.UNSCALED_DECIMALS]} if named else found)


def _names_left_out(index: ShardIndex, recipes: Sequence[FieldRecipe]) -> dict[NoticeKind, list[str]]:
    read = {source for recipe in recipes for source in recipe.sources}
    unscaled = [f"{name}: {kind}" for name, kind in index.unread if name.lower() in read and kind.find("decimal") >= 0]
    others = [number for number, name in enumerate(index.fields) if name not in read and not is_label(name)]
    pickled = [index.fields[number] for number in others if index.encoding_of(number) == PICKLE]
    unread = [text for name, kind in index.unread if (text := f"{name}: {kind}") not in unscaled]
    return {
        NoticeKind.UNREAD_COLUMNS: unread,
        NoticeKind.UNSCALED_DECIMALS: unscaled,
        NoticeKind.PICKLED_COLUMNS: pickled,
        NoticeKind.RESERVED_NAMES: [index.fields[number] for number in others if index.fields[number] not in pickled],
        NoticeKind.UNDECODED_FIELDS: [recipe.name for recipe in recipes if lacking_library(recipe)],
        NoticeKind.NARROWED_NUMBERS: [
            recipe.name for recipe in recipes if recipe.codec == "float" and recipe.encoding == "float64"
        ],
    }


def _amounts(found: Mapping[NoticeKind, Sequence[str]]) -> dict[NoticeKind, Amount]:
    return {kind: Amount(len(names), 0, tuple(names[:EXAMPLES_MAX])) for kind, names in found.items() if names}
