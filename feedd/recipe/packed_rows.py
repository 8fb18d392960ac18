"""Finds recipes that pack several samples into a row, and refuses options that packing excludes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRecipe, BadRequest
from feedd.recipe.pack_params import Packing, PackParams
from feedd.recipe.params import params_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.open_spec import OpenSpec
    from feedd.values import FieldRecipe


def packing_of(recipe: Sequence[FieldRecipe]) -> Packing | None:
    """Return how a recipe packs; None: the recipe does not pack.

    Raises:
        BadRecipe: only some fields are packed, or the fields are packed differently.
    """
    packs = [getattr(params_of(field), "pack", None) for field in recipe]
    told = [pack for pack in packs if isinstance(pack, PackParams)]
    if not told:
        return None
    if len(told) < len(packs):
        alone = next(field.name for field, pack in zip(recipe, packs, strict=True) if pack is None)
        raise BadRecipe(
            f"expected all fields to be packed or none, got {alone!r} without pack",
            object=alone,
            hint='give it the same "pack" (its samples are then as long as the others\'), or leave it out',
            stage="decode",
        )
    first, *others = told
    if any((other.length, other.how) != (first.length, first.how) for other in others):
        raise BadRecipe(
            f"expected all fields packed to rows of {first.length} by {first.how!r}, got another pack", stage="decode"
        )
    return Packing(first.length, first.how, first.fill, tuple(other.fill for other in others))


def as_long(names: Sequence[str], sizes: Sequence[NDArray[np.int64]]) -> dict[int, tuple[str, str]]:
    """Return the samples whose fields are not all as long as the first: row -> (field, reason).

    Args:
        names: names of the fields that are packed alike.
        sizes: int64[rows] per field; negative sizes mark samples that are bad for another reason.
    """
    bad: dict[int, tuple[str, str]] = {}
    for name, its in zip(names[1:], sizes[1:], strict=True):
        for row in np.flatnonzero((its != sizes[0]) & (its >= 0) & (sizes[0] >= 0)).tolist():
            what = f"expected as many values as {names[0]!r} has, {sizes[0][row]}, got {its[row]}"
            bad.setdefault(row, (name, what))
    return bad


def check_packing(spec: OpenSpec, wanted: Sequence[Sequence[FieldRecipe]]) -> None:
    """Check that no option that works per sample is combined with packing.

    Raises:
        BadRequest: such an option is used.
    """
    if not any(packing_of(recipe) for recipe in wanted):
        return
    padded = any(field.pad for recipe in wanted for field in recipe)
    several, replaced = len(wanted) > 1, spec.data.bad_samples == "replace"
    asked = {"keys": spec.data.keys, "uneven='pad'": spec.order.uneven == "pad", "several datasets": several}
    asked |= {"'pad'": padded, "bad_samples='replace'": replaced}
    for what, wrong in asked.items():
        if wrong:
            raise BadRequest(f"expected unpacked samples for {what}, got packed samples", stage="decode")
