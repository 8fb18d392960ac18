"""Parameters of each codec: parsed, checked and canonical; and what a field looks like in a batch.

Pure: nothing here decodes anything, so the daemon may import it without loading an image library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from feedd.errors import BadRecipe, Internal
from feedd.values import FieldKind, FieldRecipe, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPES: Final = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)
SAMPLE_BYTES_MAX: Final = 1 << 30
"""No single decoded field may be larger; a recipe or header that asks for more is refused before allocation."""

SIDE_MAX: Final = 16384
DIMS_MAX: Final = 8

Augment: TypeAlias = Literal["random_resized_crop", "flip"]
_ITEM_BYTES: Final = {name: max(1, int("".join(filter(str.isdigit, name)) or "8") // 8) for name in DTYPES}


def _dense(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=dtype, shape=shape, ndim=len(shape))


def _check_array(dtype: str, shape: tuple[int, ...]) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"expected one of the dtypes {', '.join(DTYPES)}, got {dtype!r}")
    if len(shape) > DIMS_MAX or any(side < 1 for side in shape):
        raise ValueError(f"expected at most {DIMS_MAX} sizes of 1 or more, got {list(shape)}")
    size_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if size_bytes > SAMPLE_BYTES_MAX:
        raise ValueError(f"expected at most {SAMPLE_BYTES_MAX} bytes per sample, got {size_bytes}")


def _check_fill(dtype: str, fill: int) -> None:
    bits = 8 * _ITEM_BYTES[dtype]
    low, high = (0, 1 << bits) if dtype[0] == "u" else (-1 << (bits - 1), 1 << (bits - 1))
    if fill and not ("int" in dtype and low <= fill < high):
        raise ValueError(f"expected a fill that {dtype} holds, got {fill}")


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    @property
    def measured(self) -> bool:
        """Whether the decoded shape is known only after reading the sample's header."""
        return False


class BytesParams(_Params, frozen=True):
    """``bytes``: the field as it is."""

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8."""
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1)


class StrParams(_Params, frozen=True):
    """``str``: UTF-8 text."""

    def spec(self, name: str) -> TensorSpec:
        """TEXT."""
        return TensorSpec(name=name, kind=FieldKind.TEXT, dtype="uint8")


class JsonParams(_Params, frozen=True):
    """``json``: JSON text, checked here and parsed by the client."""

    def spec(self, name: str) -> TensorSpec:
        """JSON."""
        return TensorSpec(name=name, kind=FieldKind.JSON, dtype="uint8")


class IntParams(_Params, frozen=True):
    """``int``: an ASCII integer."""

    def spec(self, name: str) -> TensorSpec:
        """DENSE int64 scalar."""
        return _dense(name, "int64", ())


class FloatParams(_Params, frozen=True):
    """``float``: an ASCII number, kept as float32 because that is what a loss wants."""

    def spec(self, name: str) -> TensorSpec:
        """DENSE float32 scalar."""
        return _dense(name, "float32", ())


class TensorParams(_Params, frozen=True):
    """``tensor:float32:3,224,224``: raw little-endian values in C order, of exactly that many bytes."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_array(self.dtype, self.shape)

    def spec(self, name: str) -> TensorSpec:
        """DENSE."""
        return _dense(name, self.dtype, self.shape)


class TokensParams(_Params, frozen=True):
    """``tokens:uint16:2049``: a row of that many raw little-endian token ids.

    Attributes:
        dtype: of an id.
        count: ids of a sample.
        stride: ids from one sample's start to the next one's, where files of tokens are cut (``formats.tokens``); 0:
            one less than ``count``, so that as inputs and as targets, one further on, samples cover every id once.
        last: ``pad``: samples of fewer ids are filled up with ``fill``, the last one of a file among them; ``drop``:
            that one is left out, and others are bad samples.
        fill: see ``last``.
    """

    dtype: str
    count: int
    stride: int = 0
    last: Literal["drop", "pad"] = "drop"
    fill: int = 0

    def __post_init__(self) -> None:
        _check_array(self.dtype, (self.count,))
        if not 0 <= self.stride <= SAMPLE_BYTES_MAX:
            raise ValueError(f"expected a stride of 1 or more, got {self.stride}")
        _check_fill(self.dtype, self.fill)

    @property
    def step(self) -> int:
        """The stride, of 0 what it stands for."""
        return self.stride or max(self.count - 1, 1)

    def spec(self, name: str) -> TensorSpec:
        """DENSE, one dimension."""
        return _dense(name, self.dtype, (self.count,))


class PackParams(_Params, frozen=True):
    """Samples of any length packed into rows of ``length`` numbers (``batch.pack``); ``fill`` where none is."""

    length: int
    how: Literal["concat", "bins"] = "concat"
    fill: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.length <= SAMPLE_BYTES_MAX // 8:
            raise ValueError(f"expected a length of 1 or more, got {self.length}")


class ArrayParams(_Params, frozen=True):
    """``array``: as many numbers as the sample has, of the type the data stores them in, packed where asked."""

    dtype: str = ""
    pack: PackParams | None = None

    def __post_init__(self) -> None:
        if self.dtype:
            _check_array(self.dtype, ())
            if self.pack is not None:
                _check_fill(self.dtype, self.pack.fill)

    @property
    def pinned(self) -> bool:
        """Whether the dtype is known."""
        return bool(self.dtype)

    def spec(self, name: str) -> TensorSpec:
        """RAGGED, one dimension.

        Raises:
            Internal: not pinned yet.
        """
        if not self.pinned:
            raise Internal("expected an array field to be resolved before its spec is asked for", object=name)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)


class NpyParams(_Params, frozen=True):
    """``npy``: dtype and number of dimensions are pinned by the first sample (``DecodePool.resolve``).

    With ``shape`` (``npy:float32:3,4``) it is DENSE and needs no pinning.
    """

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    ndim: int = 0

    def __post_init__(self) -> None:
        if self.dtype or self.shape is not None or self.ndim:
            _check_array(self.dtype, self.shape or ())
        if not 0 <= self.ndim <= DIMS_MAX:
            raise ValueError(f"expected at most {DIMS_MAX} dimensions, got {self.ndim}")

    @property
    def pinned(self) -> bool:
        """Whether dtype and dimensions are known."""
        return bool(self.dtype) and (self.shape is not None or self.ndim > 0)

    @property
    def measured(self) -> bool:
        """RAGGED arrays are measured from their headers."""
        return self.shape is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE with a shape, else RAGGED.

        Raises:
            Internal: not pinned yet.
        """
        if not self.pinned:
            raise Internal("expected an npy field to be resolved before its spec is asked for", object=name)
        if self.shape is not None:
            return _dense(name, self.dtype, self.shape)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=self.ndim)


class ImageParams(_Params, frozen=True):
    """``image``: 8-bit RGB, rows x columns x 3. EXIF orientation is ignored for now.

    Attributes:
        size: height and width of the result; None keeps each image's own size (RAGGED).
        augment: ``random_resized_crop`` (scale 0.08..1, ratio 3/4..4/3) in place of the centre crop; ``flip``
            mirrors half of the samples. Both are functions of the sample's seed only.
        raw: leave the bytes encoded (RAGGED uint8), for decoding on the GPU.
    """

    size: tuple[int, int] | None = None
    augment: tuple[Augment, ...] = ()
    raw: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and not all(1 <= side <= SIDE_MAX for side in self.size):
            raise ValueError(f"expected sides of 1 to {SIDE_MAX} pixels, got {list(self.size)}")
        if self.raw and (self.size is not None or self.augment):
            raise ValueError("expected raw alone, got raw together with size or augment")
        if self.augment and self.size is None:
            raise ValueError("expected size beside augment, got augment alone")
        if self.augment not in {(), ("flip",), ("random_resized_crop",), ("random_resized_crop", "flip")}:
            raise ValueError(f"expected each augment once, random_resized_crop before flip, got {list(self.augment)}")

    @property
    def measured(self) -> bool:
        """Images that keep their own size are measured from their headers."""
        return self.size is None and not self.raw

    def spec(self, name: str) -> TensorSpec:
        """DENSE [H, W, 3] with a size, else RAGGED."""
        if self.size is not None:
            return _dense(name, "uint8", (*self.size, 3))
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1 if self.raw else 3)


Params: TypeAlias = (
    BytesParams
    | StrParams
    | JsonParams
    | IntParams
    | FloatParams
    | TensorParams
    | TokensParams
    | ArrayParams
    | NpyParams
    | ImageParams
)

CODECS: Final[Mapping[str, type[Params]]] = {
    "array": ArrayParams,
    "bytes": BytesParams,
    "float": FloatParams,
    "image": ImageParams,
    "int": IntParams,
    "json": JsonParams,
    "npy": NpyParams,
    "str": StrParams,
    "tensor": TensorParams,
    "tokens": TokensParams,
}
"""Every codec there is, by its name in a recipe."""


def canonical(params: Params) -> str:
    """Return ``params`` as JSON text with sorted keys and no defaults: equal parameters, equal text."""
    return msgspec.json.encode(params, order="sorted").decode()


def params_of(recipe: FieldRecipe) -> Params:
    """Return the parsed parameters of a recipe.

    Raises:
        BadRecipe: unknown codec, or parameters it does not have.
    """
    kind = CODECS.get(recipe.codec)
    if kind is None:
        raise BadRecipe(
            f"expected one of the codecs {', '.join(CODECS)}, got {recipe.codec!r}", object=recipe.name, stage="decode"
        )
    try:
        return msgspec.json.decode(recipe.params.encode(), type=kind)
    except msgspec.DecodeError as error:
        raise BadRecipe(f"{recipe.codec}: {error}", object=recipe.name, stage="decode") from error
