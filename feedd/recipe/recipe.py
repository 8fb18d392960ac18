"""The ``fields`` mini-language: turns recipe text into frozen recipes and tensor specs. Pure.

Short form ``codec[:argument...]``, or the long form, a JSON object as text::

    bytes  str  int  float  float:float64  json  image:raw
    image  image:224x224  image:224x224:random
    npy  npy:float32:3,4  tensor:float32:3,224,224  tokens:uint16:2049  array
    folder  table:labels.csv  (see ``recipe.label_recipes``)
    {"decode": "image", "size": [224, 224], "augment": ["random_resized_crop", "flip"], "from": ["jpg", "png"]}
    {"decode": "int", "classes": ["cat", "dog"]}       (a text, as its index among the classes)
    {"decode": "array", "pad": {"to": [64, 128]}}      (see ``recipe.padding``)
    {"decode": "array", "pack": {"length": 2048}}      (see ``batching.packing``)
    {"decode": "str", "from": "json", "key": "text"}   (see ``recipe.key_params``)

A field's name may list alternatives, ``"jpg;jpeg;png"``. The first that a sample has is decoded, and the batch key is
the first of the list.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from feedd.errors import BadRecipe
from feedd.recipe import plugins, tokenizers
from feedd.recipe.encodings import (
    IMAGES,
    PICKLE,
    check_encoding,
    default_codec,
    is_member,
    of_member,
    parse_encoding,
)
from feedd.recipe.extras import present, require
from feedd.recipe.key_params import NAMES as JSON_NAMES
from feedd.recipe.key_params import check_whole_documents, key_list
from feedd.recipe.label_recipes import is_label, label_options, label_source
from feedd.recipe.padding import pad_text, padded, parse_pad
from feedd.recipe.params import (
    CODECS,
    ArrayParams,
    ImageParams,
    InstalledParams,
    NpyParams,
    Params,
    canonical,
    known_codecs,
    params_of,
)
from feedd.recipe.text_params import TokenizeParams
from feedd.recipe.transform_params import FOR_IMAGES, FOR_NUMBERS, spelled_out
from feedd.values import FieldRecipe, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.shard_index import ShardIndex

_SHORT_FORMS: Final = (
    "bytes, str, int, float, float:float64, json, npy, npy:DTYPE:D,D, image, image:HxW, image:HxW:random, image:raw, "
    "tensor:DTYPE:D,D, tokens:DTYPE:COUNT, array, audio, folder, table:FILE, table:FILE:COLUMN"
)
_DEFAULTS: Final = {
    "image": ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "avif", "jp2", "j2k"),
    "int": ("cls", "cls2", "index", "inx", "id", "int"),
    "str": ("txt", "text", "transcript"),
    "json": ("json", "jsn"),
    "npy": ("npy",),
    "audio": ("wav", "flac", "mp3", "ogg", "oga"),
}
_EXTRAS: Final = {"audio": ("audio", "soundfile", "soxr"), "tokenize": ("text", "tokenizers")}
"""Extra and modules that a codec needs; a missing one is reported at open, not by the first worker."""
_SUGGESTED_CHARACTERS: Final = 64
_PADDED: Final = ("array", "audio", "bytes", "image", "npy", "tokenize")
"""Codecs whose samples may differ in shape, so that ``pad`` is allowed."""
_DEFAULT_CODEC: Final = {extension: codec for codec, extensions in _DEFAULTS.items() for extension in extensions}


def parse_field(name: str, text: str) -> FieldRecipe:
    """Return the recipe of one field.

    Args:
        name: extension or ``;``-separated alternatives; the first is the batch key.
        text: short or long form.

    Raises:
        BadRecipe: the text is invalid; the message or hint lists what is valid.
    """
    sources = tuple(part.strip().lower() for part in name.split(";"))
    batch_key = name.split(";", 1)[0].strip()
    if not all(sources) or batch_key.startswith("__"):
        raise BadRecipe(f"expected a field name like 'jpg' or 'jpg;png', got {name!r}", object=name, stage="decode")
    text = text.strip()
    label = label_source(batch_key, text)
    if label:
        form, sources = {"decode": "int", **label_options(text)}, (label,)
    else:
        form = _long_recipe(name, text) if text.startswith("{") else _short_recipe(name, text)
    codec = form.pop("decode")
    given = form.pop("from", None)
    batch_key = _renamed(batch_key, form)
    pad = pad_text(batch_key, form.pop("pad")) if "pad" in form else ""
    try:
        if given is not None:
            given = [given] if isinstance(given, str) else given
            sources = tuple(part.lower() for part in msgspec.convert(given, tuple[str, ...]))
        params = _params(codec, form)
    except msgspec.ValidationError as error:
        problem = str(error)
        message = f"{problem[:1].lower()}{problem[1:]} in {text!r}"
        raise BadRecipe(message, object=name, hint=_known(codec), stage="decode") from error
    if not sources or not all(sources) or len(set(sources)) != len(sources):
        raise BadRecipe(f"expected different extensions to decode from, got {sources}", object=name, stage="decode")
    if pad and getattr(params, "pack", None) is not None:
        raise BadRecipe("expected pad or pack, got both", object=batch_key, stage="decode")
    is_json = any(source.rsplit(".", 1)[-1] in JSON_NAMES for source in sources)
    check_whole_documents(batch_key, codec, getattr(params, "key", None), is_json=is_json)
    recipe = FieldRecipe(name=batch_key, sources=sources, codec=codec, params=canonical(params), pad=pad)
    if not needs_resolve(recipe):
        spec_of(recipe)  # reports a field that cannot be padded before any data is read
    return recipe


def _renamed(batch_key: str, form: dict[str, Any]) -> str:
    """Return the batch key: the value of ``as``, else the field's name."""
    given = form.pop("as", batch_key)
    if not isinstance(given, str) or not given.strip() or given.startswith("__"):
        raise BadRecipe(f'expected a batch key like "image" in "as", got {given!r}', object=batch_key, stage="decode")
    return given.strip()


def _params(codec: str, form: dict[str, Any]) -> Params:
    """Return the checked parameters.

    Raises:
        msgspec.ValidationError: the codec does not accept them.
    """
    kind = CODECS.get(codec)
    if kind is None:
        installed = InstalledParams(codec, msgspec.json.encode(form, order="sorted").decode())
        installed.spec("")  # raises if the codec does not load or accept the options
        return installed
    if codec in _EXTRAS:
        require(codec, *_EXTRAS[codec])
    if "key" in form:
        form["key"] = key_list(form["key"])
    if "transforms" in form and "transforms" in kind.__struct_fields__:
        images = kind is ImageParams
        known, others = (FOR_IMAGES, plugins.names(plugins.TRANSFORMS)) if images else (FOR_NUMBERS, ())
        try:
            form["transforms"] = spelled_out(form["transforms"], known, others)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error
    params = msgspec.convert(form, kind)
    if isinstance(params, TokenizeParams):
        return msgspec.structs.replace(params, digest=tokenizers.digest(params.tokenizer))
    return params


def _known(codec: str) -> str:
    options = (*CODECS[codec].__struct_fields__, "from", "as", *(("pad",) if codec in _PADDED else ()))
    return f"known: {_SHORT_FORMS}; {codec} takes {', '.join(options)}"


def _check_codec(name: str, codec: object) -> None:
    if not isinstance(codec, str) or (codec not in CODECS and codec not in known_codecs()):
        known = ", ".join(known_codecs())
        shown = codec[:_SUGGESTED_CHARACTERS] if isinstance(codec, str) else ""  # the search takes quadratic time
        near = difflib.get_close_matches(shown, known_codecs(), 1, 0.5)
        raise BadRecipe(
            f"expected one of the codecs {known}, got {codec!r}",
            object=name,
            hint=f"did you mean {near[0]!r}?" if near else "",
            stage="decode",
        )


def _long_recipe(name: str, text: str) -> dict[str, Any]:
    try:
        form = msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecipe(f"expected a JSON object, got {text!r}: {error}", object=name, stage="decode") from error
    if "decode" not in form:
        raise BadRecipe(
            f'expected "decode": one of {", ".join(known_codecs())}, got {text!r}', object=name, stage="decode"
        )
    _check_codec(name, form["decode"])
    return form


def _short_recipe(name: str, text: str) -> dict[str, Any]:
    codec, *arguments = (part.strip() for part in text.split(":"))
    _check_codec(name, codec)
    form: dict[str, Any] = {"decode": codec}
    try:
        match (codec, arguments):
            case (_, []):
                pass
            case ("image", ["raw"]):
                form["raw"] = True
            case ("image", [size, *rest]) if rest in ([], ["random"]):
                form["size"] = _height_and_width(name, text, size)
                if rest:
                    form["augment"] = ["random_resized_crop", "flip"]
            case ("npy" | "tensor", [dtype, shape]):
                form |= {"dtype": dtype, "shape": [int(side) for side in shape.split(",") if side.strip()]}
            case ("float", [dtype]):
                form["dtype"] = dtype
            case ("tokens", [dtype, count]):
                form |= {"dtype": dtype, "count": int(count)}
            case _:
                raise _not_understood(name, text)
    except ValueError as error:
        raise _not_understood(name, text) from error
    return form


def _height_and_width(name: str, text: str, size: str) -> list[int]:
    sides = [int(side) for side in size.split("x")]
    if len(sides) != 2:
        rest = text.partition(size)[2]
        hint = f"did you mean 'image:{sides[0]}x{sides[0]}{rest}'?"
        message = f"expected height and width, like image:224x224, got {text!r}"
        raise BadRecipe(message, object=name, hint=hint, stage="decode")
    return sides


def _not_understood(name: str, text: str) -> BadRecipe:
    return BadRecipe(f"expected one of {_SHORT_FORMS}, got {text!r}", object=name, stage="decode")


def default_fields(extensions: Sequence[str], stored: Sequence[str] = ()) -> tuple[FieldRecipe, ...]:
    """Return the default recipes: one field per extension, by the extension's last part.

    ``jpg`` and ``jpeg`` become alternatives of one field. Pickles are left out.

    Args:
        extensions: all extensions of the data.
        stored: encoding of each (see ``recipe.encodings``); empty: all are files.

    Raises:
        BadRecipe: the data holds only pickles, or a field of several images.
    """
    extensions = [extension for extension in extensions if not is_label(extension)]  # labels are last: indices hold
    if IMAGES in stored:
        hint = "name the fields= you need; the codec bytes returns such a field unchanged"
        message = "expected one image per sample, got a field of several images"
        raise BadRecipe(message, object=extensions[stored.index(IMAGES)], hint=hint, stage="decode")
    pickled = {name for name, text in zip(extensions, stored, strict=False) if text == PICKLE}
    if pickled and len(pickled) == len(extensions):
        hint = "name fields= as bytes to unpickle them yourself, or write the data as arrays, text or JSON"
        raise BadRecipe("expected plain data, got pickles only", object=" ".join(extensions), hint=hint, stage="decode")
    how = {name: codec for name, text in zip(extensions, stored, strict=False) if (codec := default_codec(text))}
    recipes: list[FieldRecipe] = []
    spellings = [extension for extension in extensions if extension in {"jpg", "jpeg"}]
    for extension in extensions:
        if extension in spellings[1:] or extension in pickled or not _nameable(extension):
            continue
        name = ";".join(spellings) if extension in spellings else extension
        codec = how.get(extension) or _usual_codec(extension)
        if codec in _EXTRAS and not present(*_EXTRAS[codec][1:]):
            codec = "bytes"
        recipes.append(parse_field(name, codec))
    return tuple(recipes)


def _usual_codec(extension: str) -> str:
    return _DEFAULT_CODEC.get(extension.rsplit(".", 1)[-1], "bytes")


def lacking_library(recipe: FieldRecipe) -> bool:
    """Whether a default recipe is ``bytes`` only because the library of its usual codec is not installed."""
    codec = _usual_codec(recipe.sources[0])
    return recipe.codec == "bytes" and not recipe.encoding and codec in _EXTRAS and not present(*_EXTRAS[codec][1:])


def _nameable(extension: str) -> bool:
    """Whether a field name is allowed: names like ``__key__`` are reserved, and ``;`` separates alternatives."""
    return (
        bool(extension) and extension == extension.strip() and not extension.startswith("__") and ";" not in extension
    )


def with_encodings(recipes: Iterable[FieldRecipe], index: ShardIndex) -> tuple[FieldRecipe, ...]:
    """Return the recipes with the encodings of a shard; a field that the shard lacks stays unchanged.

    Raises:
        BadRecipe: a codec cannot read the stored encoding.
    """
    return tuple(_with_encoding(recipe, index) for recipe in recipes)


def _with_encoding(recipe: FieldRecipe, index: ShardIndex) -> FieldRecipe:
    found = (index.encoding_of(index.fields.index(source)) for source in recipe.sources if source in index.fields)
    encoding = next(found, "")
    if not is_member(encoding):
        recipe = replace(recipe, encoding=encoding)
    elif not is_member(recipe.encoding):  # else the key has the member's name already
        recipe = of_member(recipe, encoding)
    check_encoding(recipe)
    stored = parse_encoding(recipe.encoding)
    if recipe.codec == "array" and stored is not None:
        params = params_of(recipe)
        assert isinstance(params, ArrayParams)
        return replace(recipe, params=canonical(_typed(params, recipe.name, stored.dtype)))
    return recipe


def pinned_as(recipe: FieldRecipe, params: str) -> FieldRecipe:
    """Return an ``npy`` field with the dtype and dimensions of its first sample.

    Raises:
        BadRecipe: such arrays cannot be packed.
    """
    given, told = params_of(recipe), params_of(replace(recipe, params=params))
    assert isinstance(given, NpyParams)
    assert isinstance(told, NpyParams)
    if given.pack is None:
        return replace(recipe, params=params)
    try:
        return replace(recipe, params=canonical(NpyParams(told.dtype, told.shape, told.ndim, given.pack)))
    except ValueError as error:
        raise BadRecipe(str(error), object=recipe.name, stage="decode") from error


def _typed(params: ArrayParams, name: str, dtype: str) -> ArrayParams:
    try:
        return ArrayParams(dtype, params.pack)
    except ValueError as error:
        raise BadRecipe(str(error), object=name, stage="decode") from error


def spec_of(recipe: FieldRecipe) -> TensorSpec:
    """Return the spec of the field in a batch.

    Raises:
        BadRecipe: the codec or its parameters are unknown.
        Internal: an ``npy`` field was not resolved yet.
    """
    spec, pad = params_of(recipe).spec(recipe.name), parse_pad(recipe.pad)
    return spec if pad is None else padded(spec, pad)


def keeps(recipe: FieldRecipe) -> bool:
    """Whether measuring decodes the field and keeps the values, so that ``DecodePool.produce`` should measure it."""
    return bool(getattr(params_of(recipe), "keeps_values", False))


def needs_measure(recipe: FieldRecipe) -> bool:
    """Whether shapes must come from ``DecodePool.measure``; else they are fixed or follow from sizes in bytes."""
    stored = parse_encoding(recipe.encoding)
    return params_of(recipe).measured or (
        stored is not None and bool(stored.varint or stored.steps or stored.low_precision) and recipe.codec == "array"
    )


def needs_resolve(recipe: FieldRecipe) -> bool:
    """Whether the spec depends on a first shard: on its index, or on ``DecodePool.resolve``."""
    params = params_of(recipe)
    return not getattr(params, "pinned", True)


def check_fields(recipes: Iterable[FieldRecipe], available_extensions: Sequence[str]) -> None:
    """Check that the data has every wanted field, and that no two fields share a batch key.

    Raises:
        BadRecipe: a field is missing or a key is used twice; the message lists the fields of the data.
    """
    seen: set[str] = set()
    for recipe in recipes:
        if recipe.name in seen:
            raise BadRecipe("expected each batch key once, got it twice", object=recipe.name, stage="decode")
        seen.add(recipe.name)
        if not any(source in available_extensions for source in recipe.sources):
            raise BadRecipe(
                f"expected one of {', '.join(filter(_named, available_extensions)) or 'no fields at all'}, "
                f"got {' or '.join(recipe.sources)}",
                object=recipe.name,
                hint=_hint(recipe, available_extensions),
                stage="decode",
            )


def _hint(recipe: FieldRecipe, available_extensions: Sequence[str]) -> str:
    here = next((name for name in available_extensions if name.rsplit(".", 1)[-1] in JSON_NAMES), "")
    if not here or (recipe.codec not in CODECS) or "key" not in CODECS[recipe.codec].__struct_fields__:
        return "use the field names that the shards hold"
    return (
        "use the field names that the shards hold; a member of a JSON document is written as "
        f'{{"decode": "{recipe.codec}", "from": "{here}", "key": "{recipe.sources[0]}"}}'
    )


def _named(extension: str) -> bool:
    return not is_label(extension)
