"""Which recipes have their samples packed into rows of several, and what cannot be asked for beside that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRecipe, BadRequest
from feedd.recipe.pack_params import Packing, PackParams
from feedd.recipe.params import params_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.values import FieldRecipe, OpenSpec


def packing_of(recipe: Sequence[FieldRecipe]) -> Packing | None:
    """Return how a recipe packs; None: it does not.

    Raises:
        BadRecipe: some fields are not packed, or otherwise: rows are not samples any more.
    """
    packs = [getattr(params_of(field), "pack", None) for field in recipe]
    told = [pack for pack in packs if isinstance(pack, PackParams)]
    if not told:
        return None
    if len(told) < len(packs):
        alone = next(field.name for field, pack in zip(recipe, packs, strict=True) if pack is None)
        raise BadRecipe(
            f"expected all fields packed where one is, got {alone!r} as it is",
            object=alone,
            hint='give it the same "pack" (its samples are then as long as the others\'), or leave it out',
            stage="decode",
        )
    first, *others = told
    if any((other.length, other.how) != (first.length, first.how) for other in others):
        raise BadRecipe(
            f"expected all fields packed to rows of {first.length} by {first.how!r}, got others too", stage="decode"
        )
    return Packing(first.length, first.how, first.fill, tuple(other.fill for other in others))


def as_long(names: Sequence[str], sizes: Sequence[NDArray[np.int64]]) -> dict[int, tuple[str, str]]:
    """Return the samples whose fields are not all as long as the first: by row, which field, and what is wrong.

    Args:
        names: of the fields that are packed alike.
        sizes: int64[rows], of each; negative ones are bad for another reason.
    """
    bad: dict[int, tuple[str, str]] = {}
    for name, its in zip(names[1:], sizes[1:], strict=True):
        for row in np.flatnonzero((its != sizes[0]) & (its >= 0) & (sizes[0] >= 0)).tolist():
            what = f"expected as many values as {names[0]!r} has, {sizes[0][row]}, got {its[row]}"
            bad.setdefault(row, (name, what))
    return bad


def check_packing(spec: OpenSpec, wanted: Sequence[Sequence[FieldRecipe]]) -> None:
    """Make sure that nothing is asked for sample by sample where samples are packed.

    Raises:
        BadRequest: something is.
    """
    if not any(packing_of(recipe) for recipe in wanted):
        return
    padded = any(field.pad for recipe in wanted for field in recipe)
    several, replaced = len(wanted) > 1, spec.bad_samples == "replace"
    asked = {"keys": spec.keys, "uneven='pad'": spec.uneven == "pad", "several datasets": several}
    asked |= {"'pad'": padded, "bad_samples='replace'": replaced}
    for what, wrong in asked.items():
        if wrong:
            raise BadRequest(f"expected samples as they are for {what}, got packed ones", stage="decode")
