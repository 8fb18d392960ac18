"""How a format stores a field where that is not a file of its own: numbers as bytes instead of text. Pure.

A name, so that an index says it in a few bytes and a mismatch can be told::

    int64         one number, little-endian (as any of the dtypes)
    float32[]     any number of them, back to back
    uint8[3,224]  so many of them, in C order
    bfloat16      one of the numbers of ``recipe.low_precision``, which become float32; so bfloat16[3,224]
    varint        one number as protobuf packs it: int64 in two's complement
    varint[]      any number of those
    float32[][]   a FeatureList of TensorFlow's, whose steps hold any number of them; so varint[][], bytes[][], and
    lengths[][]   how many values each of its steps has
    mds           an array in front of which MosaicML says its dtype and shape; mds:float32: its shape
    litdata:numpy an array in front of which LitData says its dtype and shape; so litdata:tensor
    pil           pixels as PIL has them, in front of them their size and mode
    pixels        rows made ready for a recipe, see ``recipe.predecoded``
    images        several images, as MosaicML's jpeg_array and list[...] have them: what nothing here takes apart
    pickle        what nothing here ever opens

and nothing at all for what a tar holds: text, an encoded image, a .npy file. Where the format says which of these it
is, its name is ``text``, ``json`` or ``image``: that only chooses the codec where the user names none.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.errors import BadRecipe
from feedd.recipe.key_params import check_told
from feedd.recipe.low_precision import NARROW, WIDENED
from feedd.recipe.params import DIMS_MAX, DTYPES, SAMPLE_BYTES_MAX, TensorParams, TokensParams, params_of

if TYPE_CHECKING:
    from feedd.values import FieldRecipe

_NAME: Final = re.compile(r"([a-z0-9_]+)(?:\[([0-9,]*)\])?")
_STEPS: Final = {"float32[][]": "float32", "varint[][]": "int64", "bytes[][]": "uint8", "lengths[][]": "int64"}
_VARINT: Final = "varint"
_FILES: Final = frozenset({"audio", "image", "json", "npy", "str", "tokenize"})
"""Codecs of bytes that say themselves what they are."""
_FILE_NAMES: Final = {
    "text": "str",
    "json": "json",
    "image": "image",
    "pil": "image",
    "pixels": "image",
    "litdata:numpy": "npy",
    "litdata:tensor": "npy",
    "mds": "npy",
    "images": "bytes",
    "pickle": "bytes",
} | {f"mds:{dtype}": "npy" for dtype in DTYPES}
"""Codec by name, where a file of its own says more than a tar's member."""
_ONLY: Final = {
    name: codec
    for name, codec in _FILE_NAMES.items()
    if codec == "npy" or name in {"pil", "pixels", "images", "pickle"}
}
"""Those that no other codec than this one can read, but for ``bytes``."""
PICKLE: Final = "pickle"
IMAGES: Final = "images"
_YOURSELF: Final = {
    PICKLE: "bytes, which you may unpickle yourself",
    IMAGES: "bytes, which you may take apart yourself: a sample holds several images",
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One of the names above, taken apart.

    Attributes:
        dtype: of the numbers; of varints and of narrow numbers what they become.
        shape: of a sample: empty for one number, None for any number of them.
        varint: whether they are packed as protobuf does.
        steps: of a feature list: ``float32``, ``varint``, ``bytes`` or ``lengths``.
        narrow: what they are kept as, where that is one of ``recipe.low_precision``.
    """

    dtype: str
    shape: tuple[int, ...] | None
    varint: bool = False
    steps: str = ""
    narrow: str = ""

    @property
    def scalar(self) -> bool:
        """Whether a sample is one number."""
        return self.shape == ()


@functools.lru_cache(maxsize=1024)  # a data set has few; asked for every field of every chunk
def parse_stored(name: str) -> Encoding | None:
    """Return what a name says; None: the field is a file of its own.

    Raises:
        ValueError: it is no such name.
    """
    if not name or name in _FILE_NAMES:
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
        return Encoding(dtype, () if sides is None else None, narrow=narrow)
    shape = tuple(int(side) for side in sides.split(",") if side)
    if len(shape) > DIMS_MAX or not 0 < math.prod(shape) <= SAMPLE_BYTES_MAX:
        raise ValueError(f"expected at most {DIMS_MAX} sizes of 1 or more, got {name!r}")
    return Encoding(dtype, shape, narrow=narrow)


def check_stored(recipe: FieldRecipe) -> None:
    """Make sure that a field's codec can read what the data stores.

    Raises:
        BadRecipe: it cannot; says what can.
    """
    stored = parse_stored(recipe.stored)
    codec = recipe.codec
    key = getattr(params_of(recipe), "key", None)
    check_told(recipe.name, codec, key, is_json=recipe.stored == "json")
    if key is not None:
        if stored is not None or recipe.stored in _ONLY:
            raise _unfit(recipe, 'documents of JSON for "key"', recipe.stored, default_codec(recipe.stored) or "bytes")
        return
    if stored is None:
        only = _ONLY.get(recipe.stored, codec)
        raw = recipe.stored == "pil" and getattr(params_of(recipe), "raw", False)
        if codec not in {only, "bytes"} or raw:
            instead = _YOURSELF.get(recipe.stored, f"{only}, or bytes")
            raise _unfit(recipe, "an encoded file" if raw else "another kind of data", recipe.stored, instead)
        if codec == "array":
            raise _unfit(recipe, "numbers", "a file of its own, as tar members are", "npy, tensor:DTYPE:SHAPE or bytes")
        return
    if codec in _FILES:
        raise _unfit(recipe, "a file of its own", recipe.stored, suggest(stored))
    if codec in {"int", "float"} and (
        stored.shape or stored.steps
    ):  # any number of them may well be one: each sample tells
        raise _unfit(recipe, "one number per sample", recipe.stored, suggest(stored))
    if codec == "int" and stored.dtype.startswith("float"):
        raise _unfit(recipe, "integers", recipe.stored, suggest(stored))
    params = params_of(recipe)
    if getattr(params, "classes", ()):
        raise _unfit(recipe, "names of classes", recipe.stored, suggest(stored))
    if (
        isinstance(params, (TensorParams, TokensParams))
        and not stored.varint
        and params.dtype not in _read_as(stored, params)
    ):
        raise _unfit(recipe, params.dtype, recipe.stored, suggest(stored))


def _read_as(stored: Encoding, params: TensorParams | TokensParams) -> tuple[str, ...]:
    """Return the dtypes that a recipe may say of numbers: of narrow ones the type of their bits, too."""
    if not stored.narrow:
        return (stored.dtype,)
    bits = NARROW[stored.narrow]
    return (stored.dtype, bits) if isinstance(params, TensorParams) else (bits,)


def default_codec(name: str) -> str | None:
    """Return the recipe for what is stored under that name where the user names none; None: the name does not say."""
    stored = parse_stored(name)
    return _FILE_NAMES.get(name) if stored is None else suggest(stored)


def suggest(stored: Encoding) -> str:
    """Return the recipe that takes what is stored as it is."""
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
