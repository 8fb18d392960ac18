"""From a field's recipe to the codec that decodes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from feedd.codecs.array import NarrowCodec, NpyCodec, RawCodec, TokensCodec, VarintsCodec
from feedd.codecs.keyed import (
    KeyedArrayCodec,
    KeyedJsonCodec,
    KeyedNumberCodec,
    KeyedStrCodec,
    KeyedTensorCodec,
)
from feedd.codecs.number import FloatCodec, StoredNumberCodec, TransformedNumberCodec, VarintCodec, int_codec
from feedd.codecs.pil import PixelsCodec
from feedd.codecs.sequence_steps import StepsCodec
from feedd.codecs.text import BytesCodec, JsonCodec, StrCodec
from feedd.errors import Internal
from feedd.formats.inline_headers import header_reader
from feedd.recipe import plugins
from feedd.recipe.audio_params import AudioParams
from feedd.recipe.encodings import parse_stored
from feedd.recipe.extras import require
from feedd.recipe.params import (
    ArrayParams,
    FloatParams,
    ImageParams,
    InstalledParams,
    IntParams,
    NpyParams,
    Params,
    TensorParams,
    TokensParams,
    params_of,
)
from feedd.recipe.predecoded import PIXELS, prefix_of
from feedd.recipe.text_params import BytesParams, JsonParams, StrParams, TokenizeParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import SampleCodec
    from feedd.recipe.encodings import Encoding
    from feedd.values import FieldRecipe

_CODECS: Final[dict[type[Params], Callable[[Any], SampleCodec]]] = {
    ArrayParams: RawCodec,
    BytesParams: BytesCodec,
    FloatParams: FloatCodec,
    IntParams: int_codec,
    JsonParams: JsonCodec,
    StrParams: StrCodec,
    TensorParams: RawCodec,
    TokensParams: TokensCodec,
}

_KEYED: Final[dict[type[Params], Callable[[Any], SampleCodec]]] = {
    ArrayParams: KeyedArrayCodec,
    FloatParams: KeyedNumberCodec,
    IntParams: KeyedNumberCodec,
    JsonParams: KeyedJsonCodec,
    StrParams: KeyedStrCodec,
    TensorParams: KeyedTensorCodec,
}


def make(recipe: FieldRecipe) -> SampleCodec:
    """Return a codec for ``recipe``. Codecs keep scratch memory: one per process and thread.

    Raises:
        BadRecipe: unknown codec or parameters.
    """
    params = params_of(recipe)
    if isinstance(params, InstalledParams):  # whatever it is given, as it lies there
        return plugins.codec(params.name, params.options)
    stored = parse_stored(recipe.stored)
    if stored is not None:
        return _over(params, stored)
    if isinstance(params, ImageParams):
        if recipe.stored == PIXELS:
            return _ready(params)
        return PixelsCodec(_image(params)) if recipe.stored == "pil" else _image(params)
    if isinstance(params, NpyParams):
        return NpyCodec(params, header_reader(recipe.stored))
    return _extra(params) if isinstance(params, (AudioParams, TokenizeParams)) else _plain(params)


def _extra(params: AudioParams | TokenizeParams) -> SampleCodec:
    """Return a codec whose libraries are loaded where such data is met."""
    if isinstance(params, AudioParams):
        require("audio", "audio", "soundfile", "soxr")
        from feedd.codecs.audio import AudioCodec  # noqa: PLC0415 - an extra, and lazy on purpose

        return AudioCodec(params)
    require("tokenize", "text", "tokenizers")
    from feedd.codecs.tokenize import TokenizeCodec  # noqa: PLC0415 - an extra, and lazy on purpose

    return TokenizeCodec(params)


def _plain(params: Params) -> SampleCodec:
    if getattr(params, "key", None) is not None:
        return _KEYED[type(params)](params)
    codec = _CODECS[type(params)](params)
    if isinstance(params, (IntParams, FloatParams)) and params.transforms:
        return TransformedNumberCodec(params, codec)
    return codec


def _over(params: Params, stored: Encoding) -> SampleCodec:
    """Return the codec that reads numbers which are stored as numbers."""
    if isinstance(params, (IntParams, FloatParams)):
        if stored.narrow:
            codec: SampleCodec = NarrowCodec(params, stored.narrow)
        else:
            codec = VarintCodec(params) if stored.varint else StoredNumberCodec(params, stored)
        return TransformedNumberCodec(params, codec) if params.transforms else codec
    if stored.steps and not isinstance(params, BytesParams):
        return StepsCodec(params, stored)
    if stored.narrow and isinstance(params, (ArrayParams, TensorParams)) and params.dtype == stored.dtype:
        return NarrowCodec(params, stored.narrow)
    if stored.varint and not isinstance(params, BytesParams):
        return VarintsCodec(params)
    return _CODECS[type(params)](params)


def make_prefix(params: ImageParams) -> SampleCodec:
    """Return the codec that makes ready rows for a recipe of images (see ``recipe.predecoded``).

    Raises:
        Internal: there is nothing to do ahead.
    """
    prefix = prefix_of(params)
    if prefix is None:
        raise Internal(f"expected a recipe of which something can be done ahead, got {params}", stage="decode")
    if params.plain:
        return _image(prefix.params)
    from feedd.codecs.picture import PictureCodec  # noqa: PLC0415 - see below

    return PictureCodec(prefix.params)  # what decodes the whole recipe must decode its first part, too


def _ready(params: ImageParams) -> SampleCodec:
    from feedd.codecs.predecoded_rows import ReadyRowsCodec  # noqa: PLC0415 - see below

    prefix = prefix_of(params)
    if prefix is None:
        raise Internal(f"expected a recipe that ready rows can be of, got {params}", stage="decode")
    return ReadyRowsCodec(params, prefix, _image(params))


def _image(params: ImageParams) -> SampleCodec:
    if params.raw:
        return BytesCodec(params)
    # Importing OpenCV costs 50 ms and 10 MB: only workers of daemons that serve images pay for it.
    if not params.plain:
        from feedd.codecs.picture import PictureCodec  # noqa: PLC0415 - lazy on purpose

        return PictureCodec(params)
    from feedd.codecs.image import FittedImageCodec, WholeImageCodec  # noqa: PLC0415 - lazy on purpose

    return WholeImageCodec(params) if params.size is None else FittedImageCodec(params, params.size)
