"""Which codecs' libraries take long to import: told to workers before anything is there to decode. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.recipe.audio_params import AudioParams
from feedd.recipe.params import ImageParams
from feedd.recipe.text_params import TokenizeParams

if TYPE_CHECKING:
    from feedd.recipe.params import Params

SLOW_MODULES: Final = frozenset({"audio", "image", "picture", "tokenize"})
"""Of ``codecs``; no worker imports another because it is told to."""


def slow_module(params: Params) -> str:
    """Return the module that decodes what is so asked for; empty: it is a quick one, or not ours."""
    if isinstance(params, ImageParams) and not params.raw:
        return "image" if params.plain else "picture"
    if isinstance(params, AudioParams):
        return "audio"
    return "tokenize" if isinstance(params, TokenizeParams) else ""
