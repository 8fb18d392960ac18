"""Results that installed transforms announce, checked against the same bounds as those of built-in transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.errors import BadRecipe
from feedd.recipe import plugins
from feedd.recipe.transform_outcomes import Picture

if TYPE_CHECKING:
    from feedd.recipe.transform_params import Installed


def installed_outcome(one: Installed, picture: Picture) -> Picture:
    """Return the result of an installed transform for ``picture``.

    Raises:
        BadRecipe: the plug-in does not load, does not accept its options, or announces an invalid result.
        ValueError: the plug-in does not accept such an image.
    """
    picture.require(channels_last=True)
    plugin = plugins.transform(one.name, one.options)
    result = plugin.outcome((picture.height, picture.width, picture.channels), picture.dtype)
    try:
        (height, width, channels), dtype = result
        known = Picture(height, width, channels, str(dtype)).sized(height, width)
    except (TypeError, ValueError) as error:
        raise BadRecipe(
            f"expected rows, columns, channels and a dtype from {one.name!r}, got {result!r}: {error}",
            object=one.name,
            stage="decode",
        ) from error
    return known
