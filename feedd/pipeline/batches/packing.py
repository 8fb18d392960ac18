"""Which recipes have their samples packed into rows of several, and what cannot be asked for beside that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.batch.pack import Packing
from feedd.decode.params import ArrayParams, params_of
from feedd.errors import BadRecipe, BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import FieldRecipe, OpenSpec


def packing_of(recipe: Sequence[FieldRecipe]) -> Packing | None:
    """Return how a recipe packs; None: it does not.

    Raises:
        BadRecipe: there are other fields: rows are not samples any more.
    """
    for field in recipe:
        params = params_of(field)
        if isinstance(params, ArrayParams) and params.pack is not None:
            if len(recipe) > 1:
                raise BadRecipe(
                    f"expected the packed field {field.name!r} alone, got {len(recipe)} fields", stage="decode"
                )
            return Packing(params.pack.length, params.pack.how, params.pack.fill)
    return None


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
