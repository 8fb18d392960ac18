"""Parameters of each codec: parsed, checked and canonical; and what a field looks like in a batch.

Pure: nothing here decodes anything, so the daemon may import it without loading an image library.
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
"""No single decoded field may be larger; a recipe or header that asks for more is refused before allocation."""

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


class _NumberParams(KeyedParams, frozen=True):
    """One number; ``transforms`` are done to it in order (``one_hot``, ``cast``)."""

    transforms: tuple[NumberTransform, ...] = ()

    @property
    def measured(self) -> bool:
        """The shape is always known."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_array(*of_number(self.own_dtype, self.transforms))
        check_classes(getattr(self, "classes", ()))

    @property
    def own_dtype(self) -> str:
        """What it is read as."""
        return "int64"

    def spec(self, name: str) -> TensorSpec:
        """DENSE; a scalar unless a transform makes more of it."""
        return _dense(name, *of_number(self.own_dtype, self.transforms))


class IntParams(_NumberParams, frozen=True):
    """``int``: an ASCII integer, int64; with ``classes`` text, and its place among them."""

    classes: tuple[str, ...] = ()


class FloatParams(_NumberParams, frozen=True):
    """``float``: an ASCII number, kept as float32 because that is what a loss wants; as float64 where asked."""

    dtype: Literal["float32", "float64"] = "float32"

    @property
    def own_dtype(self) -> str:
        """What it is read as."""
        return self.dtype


class TensorParams(KeyedParams, frozen=True):
    """``tensor:float32:3,224,224``: raw little-endian values in C order, of exactly that many bytes."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def measured(self) -> bool:
        """The shape is always known."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_array(self.dtype, self.shape)

    def spec(self, name: str) -> TensorSpec:
        """DENSE."""
        return _dense(name, self.dtype, self.shape)


class TokensParams(OwnParams, frozen=True):
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
        check_fill(self.dtype, self.fill)

    @property
    def step(self) -> int:
        """The stride, of 0 what it stands for."""
        return self.stride or max(self.count - 1, 1)

    def spec(self, name: str) -> TensorSpec:
        """DENSE, one dimension."""
        return _dense(name, self.dtype, (self.count,))


class ArrayParams(KeyedShape, frozen=True):
    """``array``: as many numbers as the sample has, of the type the data stores them in, packed where asked.

    Of JSON documents (``key``) the recipe says the type.
    """

    dtype: str = ""
    pack: PackParams | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and not self.dtype:
            raise ValueError('expected "dtype" beside "key", got none: JSON does not say it')
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
            Internal: not pinned yet.
        """
        if not self.pinned:
            raise Internal("expected an array field to be resolved before its spec is asked for", object=name)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)


class NpyParams(OwnParams, frozen=True):
    """``npy``: dtype and number of dimensions are pinned by the first sample (``DecodePool.resolve``).

    With ``shape`` (``npy:float32:3,4``) it is DENSE and needs no pinning. With ``pack`` it has one dimension.
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


class ImageParams(OwnParams, frozen=True):
    """``image``: 8-bit RGB, rows x columns x 3, unless the options say otherwise.

    Attributes:
        size: height and width of the result; None keeps each image's own size (RAGGED).
        augment: ``random_resized_crop`` (scale 0.08..1, ratio 3/4..4/3) in place of the centre crop; ``flip``
            mirrors half of the samples. Both are functions of the sample's seed only.
        raw: leave the bytes encoded (RAGGED uint8), for decoding on the GPU.
        orient: apply EXIF orientation. Off by default, as in torchvision's ImageFolder and timm.
        mode: ``gray`` has one channel; ``unchanged`` has 1, 3 or 4 (alpha), as the file does.
        dtype: ``uint16`` keeps 16 bits; what has 8 is spread over them.
        transforms: what is done then, in order (see ``recipe.transform_params``).
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
        """Whether nothing is wanted but size and augment."""
        return not (self.orient or self.transforms) and self.mode == "rgb" and self.dtype == "uint8"

    def outcome(self, picture: Picture) -> Picture:
        """Return what the transforms make of an image.

        Raises:
            ValueError: one of them cannot take it.
        """
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
        """Images that keep a size of their own are measured from their headers."""
        return not self.raw and self._result.shape is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE where all images come out alike, else RAGGED."""
        result = self._result
        if self.raw:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1)
        if result.shape is not None:
            return _dense(name, result.dtype, result.shape)
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=result.dtype, ndim=3)


class InstalledParams(OwnParams, frozen=True):
    """A codec that the operator installed (see ``recipe.plugins``): its name, and its options as JSON."""

    name: str
    options: str = "{}"

    @property
    def measured(self) -> bool:
        """Whatever is not DENSE is measured."""
        return self.spec("").kind is not FieldKind.DENSE

    def spec(self, name: str) -> TensorSpec:
        """Return what the codec says.

        Raises:
            BadRecipe: it does not load, does not take its options, or says nonsense.
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
"""Every codec of our own, by its name in a recipe."""


def known_codecs() -> tuple[str, ...]:
    """Return all names there are: ours, and those of installed plug-ins."""
    return (*CODECS, *(name for name in plugins.names(plugins.CODECS) if name not in CODECS))


def canonical(params: Params) -> str:
    """Return ``params`` as JSON text with sorted keys and no defaults: equal parameters, equal text."""
    return msgspec.json.encode(params, order="sorted").decode()


def params_of(recipe: FieldRecipe) -> Params:
    """Return the parsed parameters of a recipe.

    Raises:
        BadRecipe: unknown codec, or parameters it does not have.
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
