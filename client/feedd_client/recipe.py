"""Turns the ``fields`` of a user into the recipe texts that the daemon parses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedd_client.errors import BadRecipeError


def encode_fields(fields: Mapping[str, str | Mapping[str, Any]] | None) -> tuple[tuple[str, str], ...]:
    """Return ``(name, recipe text)`` pairs in the user's order; the long form becomes canonical JSON.

    The daemon checks the recipes themselves, because it knows which codecs are installed.

    Raises:
        BadRecipeError: a name is not text, or a recipe is neither text nor a JSON-able mapping.
    """
    if fields is None:
        return ()
    if not isinstance(fields, Mapping) or not fields:
        raise BadRecipeError(
            f"expected fields to map names to recipes, got {fields!r}",
            object="fields",
            hint='like {"jpg": "image:224x224", "cls": "int"}; leave it out for the defaults by extension',
        )
    return tuple((_name(name), encode_recipe(name, recipe)) for name, recipe in fields.items())


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or name.startswith("__"):
        raise BadRecipeError(
            f"expected a field name that does not begin with two underscores, got {name!r}",
            object="fields",
            hint='keys=True adds "__key__" and "__url__"',
        )
    return name


def encode_recipe(name: str, recipe: object) -> str:
    """Return one recipe as the text to send.

    Raises:
        BadRecipeError: the recipe is neither text nor a mapping that JSON can express.
    """
    if isinstance(recipe, str) and recipe:
        return recipe
    if isinstance(recipe, Mapping):
        try:
            return json.dumps(dict(recipe), sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise BadRecipeError(f"expected a recipe that JSON can express, got {error}", object=name) from None
    raise BadRecipeError(f"expected a recipe like 'image:224x224' or a mapping, got {recipe!r}", object=name)
