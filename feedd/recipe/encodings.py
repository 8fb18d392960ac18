"""Names of encodings: how a format stores a field that is not a separate file, such as numbers in binary. Pure.

An encoding is a short name, so that an index stores it in a few bytes and messages can show it:

- ``int64``: one number, little-endian (or any other dtype).
- ``float32[]``: any number of numbers, back to back.
- ``uint8[3,224]``: numbers of this shape, in C order.
- ``bfloat16``, ``bfloat16[3,224]``: numbers of a type of ``recipe.low_precision``, which become float32.
- ``varint``: one number in protobuf's encoding, int64 in two's complement.
- ``varint[]``: any number of varints.
- ``float32[][]``, ``varint[][]``, ``bytes[][]``: a FeatureList of TensorFlow, whose steps hold any number of values.
- ``lengths[][]``: the number of values in each step of a FeatureList.
- ``mds``: an array behind MosaicML's header of dtype and shape; ``mds:float32``: behind a header of shape only.
- ``litdata:numpy``, ``litdata:tensor``: an array behind LitData's header of dtype and shape.
- ``pil``: raw pixels of PIL, behind their size and mode.
- ``pixels``: predecoded rows, see ``recipe.predecoded``.
- ``images``: several images, as in MosaicML's jpeg_array and list[...]; feedd does not split them.
- ``pickle``: a Python pickle; feedd never opens it.
- ``member:int:species``: a JSON object, of which the field is the member after the second colon; before it is the kind
  of its values, ``int``, ``float``, ``str``, ``json``, ``int64[]`` or ``float32[]``.

An empty name stands for the content of a tar member: text, an encoded image, a .npy file. If the format says which of
these the field is, the name is ``text``, ``json``, ``image``, ``npy`` or ``audio``. Such a name only selects the
default codec.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.errors import BadRecipe
from feedd.recipe.key_params import check_whole_documents
from feedd.recipe.low_precision import NARROW, WIDENED
from feedd.recipe.params import (
    DIMS_MAX,
    DTYPES,
    SAMPLE_BYTES_MAX,
    ArrayParams,
    TensorParams,
    TokensParams,
    canonical,
    params_of,
)

if TYPE_CHECKING:
    from feedd.values import FieldRecipe

_NAME: Final = re.compile(r"([a-z0-9_]+)(?:\[([0-9,]*)\])?")
_STEPS: Final = {"float32[][]": "float32", "varint[][]": "int64", "bytes[][]": "uint8", "lengths[][]": "int64"}
_VARINT: Final = "varint"
_FILES: Final = frozenset({"audio", "image", "json", "npy", "str", "tokenize"})
"""Codecs for bytes that describe themselves."""
_FILE_NAMES: Final = {
    "text": "str",
    "json": "json",
    "image": "image",
    "npy": "npy",
    "audio": "audio",
    "pil": "image",
    "pixels": "image",
    "litdata:numpy": "npy",
    "litdata:tensor": "npy",
    "mds": "npy",
    "images": "bytes",
    "pickle": "bytes",
} | {f"mds:{dtype}": "npy" for dtype in DTYPES}
"""Default codec by name, for separate files whose format says more than a tar member."""
_ONLY: Final = {
    name: codec
    for name, codec in _FILE_NAMES.items()
    if codec == "npy" or name in {"pil", "pixels", "images", "pickle"}
}
"""Names that only this codec can read, apart from ``bytes``."""
PICKLE: Final = "pickle"
MEMBER: Final = "member:"
"""Begins the encodings of members of JSON objects; alone: a member of any name, of which only the size counts."""

IMAGES: Final = "images"
_YOURSELF: Final = {
    PICKLE: "bytes, which you may unpickle yourself",
    IMAGES: "bytes, which you may take apart yourself: a sample holds several images",
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """A parsed encoding name.

    Attributes:
        dtype: dtype of the decoded numbers; for varints and low-precision numbers, the dtype that they become.
        shape: shape of a sample: empty for one number, None for any number of numbers.
        varint: whether the numbers are protobuf varints.
        steps: type of a feature list: ``float32``, ``varint``, ``bytes`` or ``lengths``; else empty.
        low_precision: the stored type, if it is one of ``recipe.low_precision``; else empty.
    """

    dtype: str
    shape: tuple[int, ...] | None
    varint: bool = False
    steps: str = ""
    low_precision: str = ""

    @property
    def scalar(self) -> bool:
        """Whether each sample is a single number."""
        return self.shape == ()


@functools.lru_cache(maxsize=1024)  # a dataset has few names, and each field of each chunk asks for one
def parse_encoding(name: str) -> Encoding | None:
    """Return the parsed name; None: the field is a separate file.

    Raises:
        ValueError: the name is not an encoding.
    """
    if not name or name in _FILE_NAMES or is_member(name):
        return None
    if name in _STEPS:
        return Encoding(_STEPS[name], None, steps=name.removesuffix("[][]"))
    match = _NAME.fullmatch(name)
    dtype, sides = match.groups() if match is not None else ("", None)
    if dtype == _VARINT and not sides:
        return Encoding("int64", () if sides is None else None, varint=True)
    narrow = dtype if dtype in NARROW else ""
    dtype = WIDENED if narrow else dtype
    if dtype not in DTYPES:
        raise ValueError(f"expected one of the dtypes {', '.join(DTYPES)}, or {_VARINT}, got {name!r}")
    if not sides:
        return Encoding(dtype, () if sides is None else None, low_precision=narrow)
    shape = tuple(int(side) for side in sides.split(",") if side)
    if len(shape) > DIMS_MAX or not 0 < math.prod(shape) <= SAMPLE_BYTES_MAX:
        raise ValueError(f"expected at most {DIMS_MAX} sizes of 1 or more, got {name!r}")
    return Encoding(dtype, shape, low_precision=narrow)


def is_member(name: str) -> bool:
    """Whether an encoding is that of a member of JSON objects."""
    return name.startswith(MEMBER)


def member_encoding(kind: str, name: str) -> str:
    """Return the encoding of a member of JSON objects.

    Args:
        kind: kind of its values: ``int``, ``float``, ``str``, ``json``, ``int64[]`` or ``float32[]``.
        name: name of the member.
    """
    return f"{MEMBER}{kind}:{name}"


def of_member(recipe: FieldRecipe, encoding: str) -> FieldRecipe:
    """Return a recipe that reads a member of JSON objects; its own ``key`` continues below the member.

    Args:
        recipe: the recipe, as the user wrote it.
        encoding: encoding of the member.

    Raises:
        BadRecipe: the codec does not read JSON, or the recipe lists alternatives.
    """
    _, kind, name = encoding.split(":", 2)
    params = params_of(recipe)
    if not hasattr(params, "key") or len(recipe.sources) > 1:
        several = len(recipe.sources) > 1
        raise BadRecipe(
            f"expected {'one attribute' if several else 'a codec that reads JSON'}, "
            f"got {' or '.join(recipe.sources) if several else repr(recipe.codec)}",
            object=recipe.name,
            hint=f"the value of {name!r} is in the manifest itself: read it as {default_codec(encoding)}",
            stage="decode",
        )
    changes: dict[str, object] = {"key": (name, *(params.key or ()))}
    if isinstance(params, ArrayParams) and not params.dtype:
        changes["dtype"] = kind.removesuffix("[]") if kind.endswith("[]") else "float32"
    return replace(recipe, params=canonical(msgspec.structs.replace(params, **changes)), encoding=encoding)


def check_encoding(recipe: FieldRecipe) -> None:
    """Check that a field's codec can read the stored encoding.

    Raises:
        BadRecipe: the codec cannot read it; the hint names a codec that can.
    """
    stored = parse_encoding(recipe.encoding)
    codec = recipe.codec
    key = getattr(params_of(recipe), "key", None)
    check_whole_documents(recipe.name, codec, key, is_json=recipe.encoding == "json")
    if key is not None:
        if stored is not None or recipe.encoding in _ONLY:
            raise _unfit(recipe, 'JSON documents for "key"', recipe.encoding, default_codec(recipe.encoding) or "bytes")
        return
    if stored is None:
        only = _ONLY.get(recipe.encoding, codec)
        raw = recipe.encoding == "pil" and getattr(params_of(recipe), "raw", False)
        if codec not in {only, "bytes"} or raw:
            instead = _YOURSELF.get(recipe.encoding, f"{only}, or bytes")
            raise _unfit(recipe, "an encoded file" if raw else "another kind of data", recipe.encoding, instead)
        if codec == "array":
            raise _unfit(recipe, "numbers", "a separate file, such as a tar member", "npy, tensor:DTYPE:SHAPE or bytes")
        return
    if codec in _FILES:
        raise _unfit(recipe, "a separate file", recipe.encoding, suggest(stored))
    if codec in {"int", "float"} and (stored.shape or stored.steps):  # "any number" may be one: each sample is checked
        raise _unfit(recipe, "one number per sample", recipe.encoding, suggest(stored))
    if codec == "int" and stored.dtype.startswith("float"):
        raise _unfit(recipe, "integers", recipe.encoding, suggest(stored))
    params = params_of(recipe)
    if getattr(params, "classes", ()):
        raise _unfit(recipe, "class names", recipe.encoding, suggest(stored))
    if (
        isinstance(params, (TensorParams, TokensParams))
        and not stored.varint
        and params.dtype not in _read_as(stored, params)
    ):
        raise _unfit(recipe, params.dtype, recipe.encoding, suggest(stored))


def _read_as(stored: Encoding, params: TensorParams | TokensParams) -> tuple[str, ...]:
    """Return the dtypes that a recipe may name; for low-precision numbers also the unsigned type of the bits."""
    if not stored.low_precision:
        return (stored.dtype,)
    bits = NARROW[stored.low_precision]
    return (stored.dtype, bits) if isinstance(params, TensorParams) else (bits,)


def default_codec(name: str) -> str | None:
    """Return the default recipe for an encoding; None: the encoding does not determine one."""
    if is_member(name):
        kind = name.split(":", 2)[1]
        return f'{{"decode": "array", "dtype": "{kind.removesuffix("[]")}"}}' if kind.endswith("[]") else kind
    stored = parse_encoding(name)
    return _FILE_NAMES.get(name) if stored is None else suggest(stored)


def suggest(stored: Encoding) -> str:
    """Return the recipe that reads the stored numbers unchanged."""
    if stored.scalar:
        return "float" if stored.dtype.startswith("float") else "int"
    if stored.shape is None:
        return "array"
    return f"tensor:{stored.dtype}:{','.join(map(str, stored.shape))}"


def _unfit(recipe: FieldRecipe, expected: str, got: str, instead: str) -> BadRecipe:
    return BadRecipe(
        f"expected {expected} for {recipe.codec!r}, got {got}",
        object=recipe.name,
        hint=f"this data can be read as {instead}",
        stage="decode",
    )
