"""Makes the codec that decodes a field, from the field's recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from feedd.codecs.array import NpyCodec, RawCodec, TokensCodec, ValuesCodec, low_precision_reader
from feedd.codecs.json_values import JsonValueCodec, json_number_reader
from feedd.codecs.number import (
    NumberCodec,
    binary_reader,
    class_reader,
    only_number,
    read_float,
    read_int,
)
from feedd.codecs.pil import PilCodec
from feedd.codecs.protobuf_values import count_varints, read_varints, steps_reader
from feedd.codecs.text import BytesCodec, JsonCodec, StrCodec
from feedd.errors import Internal
from feedd.formats.inline_headers import header_reader
from feedd.recipe import plugins
from feedd.recipe.audio_params import AudioParams
from feedd.recipe.encodings import is_member, parse_encoding
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
    JsonParams: JsonCodec,
    StrParams: StrCodec,
    TensorParams: RawCodec,
    TokensParams: TokensCodec,
}


def make(recipe: FieldRecipe) -> SampleCodec:
    """Return a codec for ``recipe``. Codecs keep scratch memory, so each process and thread needs its own.

    Raises:
        BadRecipe: unknown codec or parameters.
    """
    params = params_of(recipe)
    if isinstance(params, InstalledParams):  # an installed codec gets the stored bytes
        return plugins.codec(params.name, params.options)
    encoding = parse_encoding(recipe.encoding)
    if isinstance(params, (IntParams, FloatParams)):
        return _number(params, encoding, texts=is_member(recipe.encoding))
    if encoding is not None:
        return _over(params, encoding)
    if isinstance(params, ImageParams):
        return _encoded_image(params, recipe.encoding)
    if isinstance(params, NpyParams):
        return NpyCodec(params, header_reader(recipe.encoding))
    return _extra(params) if isinstance(params, (AudioParams, TokenizeParams)) else _plain(params)


def _extra(params: AudioParams | TokenizeParams) -> SampleCodec:
    """Return a codec that loads its libraries only now."""
    if isinstance(params, AudioParams):
        require("audio", "audio", "soundfile", "soxr")
        from feedd.codecs.audio import AudioCodec  # noqa: PLC0415 - an extra, and lazy on purpose

        return AudioCodec(params)
    require("tokenize", "text", "tokenizers")
    from feedd.codecs.tokenize import TokenizeCodec  # noqa: PLC0415 - an extra, and lazy on purpose

    return TokenizeCodec(params)


def _plain(params: Params) -> SampleCodec:
    if isinstance(params, (ArrayParams, JsonParams, StrParams, TensorParams)) and params.key is not None:
        return JsonValueCodec(params)
    return _CODECS[type(params)](params)


def _number(params: IntParams | FloatParams, encoding: Encoding | None, *, texts: bool) -> NumberCodec:
    if params.key is not None:
        return NumberCodec(params, json_number_reader(params, texts=texts))
    if encoding is None:
        if isinstance(params, FloatParams):
            return NumberCodec(params, read_float)
        return NumberCodec(params, class_reader(params.classes) if params.classes else read_int)
    if encoding.low_precision:
        return NumberCodec(params, only_number(low_precision_reader(encoding.low_precision)))
    return NumberCodec(params, only_number(read_varints) if encoding.varint else binary_reader(params, encoding))


def _over(params: Params, encoding: Encoding) -> SampleCodec:
    """Return the codec for data that is stored as numbers."""
    if isinstance(params, BytesParams):
        return BytesCodec(params)
    if encoding.steps:
        return ValuesCodec(params, steps_reader(encoding.steps))
    if encoding.varint:
        return ValuesCodec(params, read_varints, count_varints)
    if encoding.low_precision and isinstance(params, (ArrayParams, TensorParams)) and params.dtype == encoding.dtype:
        return ValuesCodec(params, low_precision_reader(encoding.low_precision))
    return _CODECS[type(params)](params)


def make_prefix(params: ImageParams) -> SampleCodec:
    """Return the codec that makes predecoded rows for a recipe of images (see ``recipe.predecoded``).

    Raises:
        Internal: no part of the recipe can be done in advance.
    """
    prefix = prefix_of(params)
    if prefix is None:
        raise Internal(f"no part of this recipe can be done in advance: {params}", stage="decode")
    if params.plain:
        return _image(prefix.params)
    from feedd.codecs.picture import PictureCodec  # noqa: PLC0415 - see below

    return PictureCodec(prefix.params)  # the same codec decodes the whole recipe


def _encoded_image(params: ImageParams, encoding: str) -> SampleCodec:
    if encoding == "pil":
        return PilCodec(_image(params))
    if encoding != PIXELS:
        return _image(params)
    from feedd.codecs.predecoded_rows import PredecodedRowsCodec  # noqa: PLC0415 - see below

    prefix = prefix_of(params)
    if prefix is None:
        raise Internal(f"no predecoded rows can exist for this recipe: {params}", stage="decode")
    return PredecodedRowsCodec(params, prefix, _image(params))


def _image(params: ImageParams) -> SampleCodec:
    if params.raw:
        return BytesCodec(params)
    # Importing OpenCV costs 50 ms and 10 MB, so only workers that decode images import it.
    if not params.plain:
        from feedd.codecs.picture import PictureCodec  # noqa: PLC0415 - lazy on purpose

        return PictureCodec(params)
    from feedd.codecs.image import FittedImageCodec, WholeImageCodec  # noqa: PLC0415 - lazy on purpose

    return WholeImageCodec(params) if params.size is None else FittedImageCodec(params, params.size)
