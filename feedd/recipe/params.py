"""Parameters of each codec: parsed, checked and canonical; and the resulting field in a batch.

Pure: nothing here decodes data, so the daemon may import this module without loading an image library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from feedd.errors import BadRecipe, Internal
from feedd.recipe import plugins
from feedd.recipe.audio_params import AudioParams
from feedd.recipe.classes import check_classes
from feedd.recipe.installed_transforms import installed_outcome
from feedd.recipe.key_params import KeyedParams
from feedd.recipe.pack_params import PackParams, check_fill
from feedd.recipe.text_params import BytesParams, JsonParams, KeyedShape, OwnParams, StrParams, TokenizeParams
from feedd.recipe.transform_outcomes import SIDE_MAX, Picture
from feedd.recipe.transform_params import ImageTransform, Installed, NumberTransform, of_number
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
"""Limit for a single decoded field; a recipe or header that needs more is refused before memory is allocated."""

DIMS_MAX: Final = 8

Augment: TypeAlias = Literal["random_resized_crop", "flip"]
_TRANSFORMS_MAX: Final = 64
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


class _NumberParams(KeyedParams, frozen=True):
    """One number; ``transforms`` are applied in order (``one_hot``, ``cast``)."""

    transforms: tuple[NumberTransform, ...] = ()

    @property
    def measured(self) -> bool:
        """False: the shape is always known."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_array(*of_number(self.own_dtype, self.transforms))
        check_classes(getattr(self, "classes", ()))

    @property
    def own_dtype(self) -> str:
        """The dtype as which the number is read."""
        return "int64"

    def spec(self, name: str) -> TensorSpec:
        """DENSE; a scalar unless a transform adds a dimension."""
        return _dense(name, *of_number(self.own_dtype, self.transforms))


class IntParams(_NumberParams, frozen=True):
    """``int``: an ASCII integer, int64; with ``classes``: a text, as its index among the classes."""

    classes: tuple[str, ...] = ()


class FloatParams(_NumberParams, frozen=True):
    """``float``: an ASCII number, as float32 because losses use float32; float64 on request."""

    dtype: Literal["float32", "float64"] = "float32"

    @property
    def own_dtype(self) -> str:
        """The dtype as which the number is read."""
        return self.dtype


class TensorParams(KeyedParams, frozen=True):
    """``tensor:float32:3,224,224``: raw little-endian values in C order, of exactly this size."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def measured(self) -> bool:
        """False: the shape is always known."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_array(self.dtype, self.shape)

    def spec(self, name: str) -> TensorSpec:
        """DENSE, with the recipe's shape."""
        return _dense(name, self.dtype, self.shape)


class TokensParams(OwnParams, frozen=True):
    """``tokens:uint16:2049``: a row of ``count`` raw little-endian token ids.

    Attributes:
        dtype: dtype of an id.
        count: ids per sample.
        stride: ids from one sample's start to the next, if files of tokens are split (``formats.tokens``). The default,
            0, means ``count - 1``: inputs and targets, shifted by one, then cover every id once.
        last: ``pad``: samples with fewer ids, such as the last of a file, are filled up with ``fill``. ``drop``: the
            last sample of a file is left out if short, and other short samples are bad samples.
        fill: id that fills short samples, see ``last``.
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
        check_fill(self.dtype, self.fill)

    @property
    def step(self) -> int:
        """The stride in ids, with 0 replaced by its meaning."""
        return self.stride or max(self.count - 1, 1)

    def spec(self, name: str) -> TensorSpec:
        """DENSE, one dimension of ``count`` ids."""
        return _dense(name, self.dtype, (self.count,))


class ArrayParams(KeyedShape, frozen=True):
    """``array``: all numbers of a sample, in their stored dtype, packed on request.

    For values of JSON documents (``key``), the recipe must name the dtype.
    """

    dtype: str = ""
    pack: PackParams | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and not self.dtype:
            raise ValueError('expected "dtype" together with "key", got none: JSON does not say it')
        if self.dtype:
            _check_array(self.dtype, ())
            if self.pack is not None:
                check_fill(self.dtype, self.pack.fill)

    @property
    def pinned(self) -> bool:
        """Whether the dtype is known."""
        return bool(self.dtype)

    def spec(self, name: str) -> TensorSpec:
        """RAGGED, one dimension.

        Raises:
            Internal: the dtype is not known yet.
        """
        if not self.pinned:
            raise Internal("expected an array field to be resolved before its spec is asked for", object=name)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)


class NpyParams(OwnParams, frozen=True):
    """``npy``: dtype and number of dimensions are taken from the first sample (``DecodePool.resolve``).

    With ``shape`` (``npy:float32:3,4``) the field is DENSE and needs no first sample. With ``pack`` it has one
    dimension.
    """

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    ndim: int = 0
    pack: PackParams | None = None

    def __post_init__(self) -> None:
        if self.pack is not None:
            if self.shape is not None or self.ndim > 1:
                got = f"shape {list(self.shape)}" if self.shape is not None else f"{self.ndim} dimensions"
                raise ValueError(f"expected arrays of one dimension, of any length, to pack, got {got}")
            check_fill(self.dtype or "int64", self.pack.fill)
        if self.dtype or self.shape is not None or self.ndim:
            _check_array(self.dtype, self.shape or ())
        if not 0 <= self.ndim <= DIMS_MAX:
            raise ValueError(f"expected at most {DIMS_MAX} dimensions, got {self.ndim}")

    @property
    def pinned(self) -> bool:
        """Whether dtype and number of dimensions are known."""
        return bool(self.dtype) and (self.shape is not None or self.ndim > 0)

    @property
    def measured(self) -> bool:
        """RAGGED arrays are measured from their headers."""
        return self.shape is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE if the shape is known, else RAGGED.

        Raises:
            Internal: dtype or dimensions are not known yet.
        """
        if not self.pinned:
            raise Internal("expected an npy field to be resolved before its spec is asked for", object=name)
        if self.shape is not None:
            return _dense(name, self.dtype, self.shape)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=self.ndim)


class ImageParams(OwnParams, frozen=True):
    """``image``: 8-bit RGB, rows x columns x 3, unless options change this.

    Attributes:
        size: height and width of the result; None keeps each image's size (RAGGED).
        augment: ``random_resized_crop`` (scale 0.08..1, ratio 3/4..4/3) replaces the centre crop; ``flip`` mirrors half
            of the samples. Both depend only on the sample's seed.
        raw: leave the bytes encoded (RAGGED uint8), for decoding on the GPU.
        orient: apply the EXIF orientation. Off by default, as in torchvision's ImageFolder and timm.
        mode: ``gray`` has one channel; ``unchanged`` has 1, 3 or 4 (alpha) channels, like the file.
        dtype: ``uint16`` keeps 16 bits; 8-bit images are scaled to 16 bits.
        transforms: further steps, in order (see ``recipe.transform_params``).
    """

    size: tuple[int, int] | None = None
    augment: tuple[Augment, ...] = ()
    raw: bool = False
    orient: bool = False
    mode: Literal["rgb", "gray", "unchanged"] = "rgb"
    dtype: Literal["uint8", "uint16"] = "uint8"
    transforms: tuple[ImageTransform, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None and not all(1 <= side <= SIDE_MAX for side in self.size):
            raise ValueError(f"expected sides of 1 to {SIDE_MAX} pixels, got {list(self.size)}")
        if self.raw and (self.size is not None or self.augment or not self.plain):
            raise ValueError("expected raw alone, got raw together with size, augment or other options")
        if self.augment and self.size is None:
            raise ValueError("expected size beside augment, got augment alone")
        if self.augment not in {(), ("flip",), ("random_resized_crop",), ("random_resized_crop", "flip")}:
            raise ValueError(f"expected each augment once, random_resized_crop before flip, got {list(self.augment)}")
        shape = self._result.shape
        if shape is not None:
            _check_array(self._result.dtype, shape)

    @property
    def plain(self) -> bool:
        """Whether only ``size`` and ``augment`` are used."""
        return not (self.orient or self.transforms) and self.mode == "rgb" and self.dtype == "uint8"

    def outcome(self, picture: Picture) -> Picture:
        """Return an image's properties after all transforms.

        Raises:
            ValueError: a transform does not accept its input.
        """
        if len(self.transforms) > _TRANSFORMS_MAX:
            raise ValueError(f"expected at most {_TRANSFORMS_MAX} transforms, got {len(self.transforms)}")
        for one in self.transforms:
            picture = installed_outcome(one, picture) if isinstance(one, Installed) else one.outcome(picture)
        return picture

    @property
    def _result(self) -> Picture:
        height, width = self.size or (None, None)
        channels = {"rgb": 3, "gray": 1}.get(self.mode)
        return self.outcome(Picture(height, width, channels, self.dtype))

    @property
    def measured(self) -> bool:
        """Images of varying size are measured from their headers."""
        return not self.raw and self._result.shape is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE if all images have the same shape, else RAGGED."""
        result = self._result
        if self.raw:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1)
        if result.shape is not None:
            return _dense(name, result.dtype, result.shape)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=result.dtype, ndim=3)


class InstalledParams(OwnParams, frozen=True):
    """A codec that the operator installed (see ``recipe.plugins``), with its options as JSON."""

    name: str
    options: str = "{}"

    @property
    def measured(self) -> bool:
        """Whether samples must be measured: all fields that are not DENSE are."""
        return self.spec("").kind is not FieldKind.DENSE

    def spec(self, name: str) -> TensorSpec:
        """Return the spec that the codec announces.

        Raises:
            BadRecipe: the codec does not load, does not accept its options, or announces an invalid spec.
        """
        spec = plugins.codec(self.name, self.options).spec(name)
        try:
            _check_array(spec.dtype, spec.shape)
        except (ValueError, AttributeError, TypeError) as error:
            raise BadRecipe(f"installed codec {self.name!r}: {error}", object=name, stage="decode") from error
        return spec


Params: TypeAlias = (
    BytesParams
    | StrParams
    | JsonParams
    | IntParams
    | FloatParams
    | TensorParams
    | TokenizeParams
    | TokensParams
    | ArrayParams
    | NpyParams
    | AudioParams
    | ImageParams
    | InstalledParams
)

CODECS: Final[Mapping[str, type[Params]]] = {
    "array": ArrayParams,
    "audio": AudioParams,
    "bytes": BytesParams,
    "float": FloatParams,
    "image": ImageParams,
    "int": IntParams,
    "json": JsonParams,
    "npy": NpyParams,
    "str": StrParams,
    "tensor": TensorParams,
    "tokenize": TokenizeParams,
    "tokens": TokensParams,
}
"""Every built-in codec, by its name in a recipe."""


def known_codecs() -> tuple[str, ...]:
    """Return the names of all codecs: built-in and installed."""
    return (*CODECS, *(name for name in plugins.names(plugins.CODECS) if name not in CODECS))


def canonical(params: Params) -> str:
    """Return ``params`` as JSON text with sorted keys and without defaults: equal parameters give equal text."""
    return msgspec.json.encode(params, order="sorted").decode()


def params_of(recipe: FieldRecipe) -> Params:
    """Return the parsed parameters of a recipe.

    Raises:
        BadRecipe: the codec is unknown, or does not have these parameters.
    """
    kind = CODECS.get(recipe.codec)
    if kind is None and recipe.codec in plugins.names(plugins.CODECS):
        kind = InstalledParams
    if kind is None:
        known = ", ".join(known_codecs())
        raise BadRecipe(f"expected one of the codecs {known}, got {recipe.codec!r}", object=recipe.name, stage="decode")
    try:
        return msgspec.json.decode(recipe.params.encode(), type=kind)
    except msgspec.DecodeError as error:
        raise BadRecipe(f"{recipe.codec}: {error}", object=recipe.name, stage="decode") from error
