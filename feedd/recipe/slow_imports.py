"""Codecs whose libraries take long to import: workers import them before the first data arrives. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.recipe.audio_params import AudioParams
from feedd.recipe.params import ImageParams
from feedd.recipe.text_params import TokenizeParams

if TYPE_CHECKING:
    from feedd.recipe.params import Params

SLOW_MODULES: Final = frozenset({"audio", "image", "picture", "tokenize"})
"""Modules of ``codecs``; workers import no other module on request."""


def slow_module(params: Params) -> str:
    """Return the module that decodes a field with these parameters; empty: a fast one, or an installed codec."""
    if isinstance(params, ImageParams) and not params.raw:
        return "image" if params.plain else "picture"
    if isinstance(params, AudioParams):
        return "audio"
    return "tokenize" if isinstance(params, TokenizeParams) else ""
