"""``pad``: samples of different shapes as one block, padded with a value.

In a field's long form::

    {"decode": "array", "pad": {"to": "longest", "value": 0}}
    {"decode": "npy", "pad": {"to": [64, 128, 256], "truncate": true, "mask": false, "lengths": true}}

``to`` sets the first dimension: the batch's longest sample, a fixed length, or the smallest of several lengths that
holds the longest sample. Further dimensions are as large as the batch's largest. With field ``x`` comes ``x_mask``,
which is True for a sample's real values. The mask covers all dimensions but the last, or the only dimension. On request
``x_length`` is added: the sample's size in each dimension.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from feedd.errors import BadRecipe, BadSample
from feedd.recipe.params import DIMS_MAX, SAMPLE_BYTES_MAX
from feedd.values import FieldKind, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec

_LENGTHS_MAX: Final = 256  # number of lengths: a few suffice, and every batch checks each of them
MASK_SUFFIX: Final = "_mask"
LENGTH_SUFFIX: Final = "_length"


class Pad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a field is padded.

    Attributes:
        to: length of the first dimension; ``longest``: of the batch's longest; several: the smallest that suffices.
        value: the padding.
        truncate: cut longer samples off at their end; otherwise they are bad samples.
        mask: add ``<name>_mask``, bool.
        lengths: add ``<name>_length``, int64: per sample, or per sample and dimension if there are several dimensions.
    """

    to: int | Literal["longest"] | tuple[int, ...] = "longest"
    value: int | float = 0
    truncate: bool = False
    mask: bool = True
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.to == "longest":
            if self.truncate:
                raise ValueError("expected a length together with truncate, got longest")
            return
        if not 1 <= len(self.buckets) <= _LENGTHS_MAX:
            raise ValueError(f"expected 1 to {_LENGTHS_MAX} lengths, got {len(self.buckets)}")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"expected different lengths in ascending order, got {list(self.buckets)}")
        if not 1 <= self.buckets[0] <= self.buckets[-1] <= SAMPLE_BYTES_MAX:
            raise ValueError(f"expected lengths of 1 to {SAMPLE_BYTES_MAX}, got {list(self.buckets)}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths that the first dimension may have, ascending; empty: any length."""
        if isinstance(self.to, int):
            return (self.to,)
        return () if isinstance(self.to, str) else self.to

    def dims(self, shapes: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the shape that all samples of a batch get.

        Args:
            shapes: int64[rows, ndim], decoded shapes; negative rows are bad samples and are ignored, and so are rows
                that are too long.
        """
        buckets = self.buckets
        known = shapes[(shapes >= 0).all(axis=1)]
        if buckets and not self.truncate:
            known = known[known[:, 0] <= buckets[-1]]
        most = [int(side) for side in known.max(axis=0)] if len(known) else [0] * shapes.shape[1]
        if buckets:
            most[0] = next((length for length in buckets if length >= most[0]), buckets[-1])
        return tuple(most)


@functools.lru_cache(maxsize=256)
def parse_pad(text: str) -> Pad | None:
    """Return the parsed ``pad`` of a recipe; None: the recipe does not pad."""
    return msgspec.json.decode(text.encode(), type=Pad) if text else None


def pad_text(name: str, given: object) -> str:
    """Return the user's ``pad`` as canonical JSON text.

    Raises:
        BadRecipe: ``pad`` is invalid.
    """
    try:
        return msgspec.json.encode(msgspec.convert(given, Pad), order="sorted").decode()
    except msgspec.ValidationError as error:
        problem = str(error)
        raise BadRecipe(
            f"pad: {problem[:1].lower()}{problem[1:]}",
            object=name,
            hint='like {"to": "longest" | 512 | [64, 128, 256], "value": 0, "truncate": true}',
            stage="decode",
        ) from error


def padded(spec: TensorSpec, pad: Pad) -> TensorSpec:
    """Return the spec of a RAGGED field after padding.

    Raises:
        BadRecipe: the field is not RAGGED, or its dtype cannot hold the value.
    """
    if spec.kind is not FieldKind.RAGGED:
        raise BadRecipe(
            f"expected a field whose samples differ in shape to pad, got a {spec.kind.value} field",
            object=spec.name,
            hint="leave pad out",
            stage="decode",
        )
    dtype = np.dtype(spec.dtype)
    if not _holds(dtype, pad.value):
        raise BadRecipe(f"expected a padding value that {dtype.name} can hold, got {pad.value}", object=spec.name)
    return replace(spec, kind=FieldKind.PADDED)


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Return whether a dtype can hold the value; floats may round it, integers may not."""
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype.name).max)
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return low <= value <= high and value == int(value)


def batch_specs(kinds: Iterable[tuple[TensorSpec, Pad | None]]) -> tuple[TensorSpec, ...]:
    """Return the specs of a batch: those of the recipes, and those that padding adds.

    Raises:
        BadRecipe: two specs have the same name.
    """
    specs: list[TensorSpec] = []
    for spec, pad in kinds:
        specs.append(spec)
        if pad is not None and pad.mask:
            name = spec.name + MASK_SUFFIX
            specs.append(TensorSpec(name, FieldKind.PADDED, "bool", ndim=mask_ndim(spec.ndim)))
        if pad is not None and pad.lengths:
            shape = () if spec.ndim == 1 else (spec.ndim,)
            specs.append(TensorSpec(spec.name + LENGTH_SUFFIX, FieldKind.DENSE, "int64", shape, len(shape)))
    return unique(specs)


def unique(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs after checking that their names are unique.

    Raises:
        BadRecipe: two specs have the same name.
    """
    specs = tuple(specs)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise BadRecipe("expected each batch key once, got it twice", object=name, stage="decode")
    return specs


def mask_ndim(ndim: int) -> int:
    """Return the dimensions of a sample's mask: one less than the sample's, because channels are masked together."""
    return max(1, ndim - 1)


class Padding:
    """A padded field as a worker sees it: the size of its rows in this batch."""

    def __init__(self, pad: Pad, dims: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.dims = dims
        self._dtype = dtype
        self._value = np.array(pad.value).astype(dtype)
        self._truncate = pad.truncate

    def decode(
        self, codec: SampleCodec, data: memoryview, shape: list[int], target: NDArray[np.generic], seed: int
    ) -> None:
        """Decode a sample of ``shape`` into the start of its row, and pad the rest.

        Raises:
            BadSample: the sample is longer than the row, or cannot be decoded.
        """
        if len(shape) > DIMS_MAX or np.prod(shape, dtype=np.float64) * self._dtype.itemsize > SAMPLE_BYTES_MAX:
            raise BadSample(f"expected at most {SAMPLE_BYTES_MAX} bytes, got shape {shape}")
        if shape[0] > self.dims[0] and not self._truncate:
            raise BadSample(f"expected a length of at most {self.dims[0]}, got {shape[0]}")
        if len(shape) == 1 and shape[0] <= self.dims[0]:
            codec.decode(data, target[: shape[0]], seed)
            target[shape[0] :] = self._value
            return
        whole: NDArray[np.generic] = np.empty(shape, self._dtype)  # a codec needs a contiguous target
        codec.decode(data, whole, seed)
        head = tuple(slice(0, min(side, room)) for side, room in zip(shape, self.dims, strict=True))
        target[...] = self._value
        target[head] = whole[head]
