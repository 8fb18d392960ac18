"""``pad``: samples of different shapes as one block, filled up with a value.

In a field's long form::

    {"decode": "array", "pad": {"to": "longest", "value": 0}}
    {"decode": "npy", "pad": {"to": [64, 128, 256], "truncate": true, "mask": false, "lengths": true}}

``to`` is about the first dimension: as long as the batch's longest sample, always so long, or the smallest of several
lengths that the longest fits into. Further dimensions are as large as the batch's largest. Beside field ``x`` comes
``x_mask``, True where a value is a sample's own (over all dimensions but the last, or the only one), and where asked
for ``x_length``: how much of each dimension is.
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

_LENGTHS_MAX: Final = 256  # of buckets: a few suffice, and each is looked at for every batch
MASK_SUFFIX: Final = "_mask"
LENGTH_SUFFIX: Final = "_length"


class Pad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a field is padded.

    Attributes:
        to: length of the first dimension; ``longest``: of the batch's longest; several: the smallest that suffices.
        value: what fills the rest.
        truncate: cut longer samples off at their end; else they are bad samples.
        mask: add ``<name>_mask``, bool.
        lengths: add ``<name>_length``, int64: per sample, or per sample and dimension where there are several.
    """

    to: int | Literal["longest"] | tuple[int, ...] = "longest"
    value: int | float = 0
    truncate: bool = False
    mask: bool = True
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.to == "longest":
            if self.truncate:
                raise ValueError("expected a length beside truncate, got longest")
            return
        if not 1 <= len(self.buckets) <= _LENGTHS_MAX:
            raise ValueError(f"expected 1 to {_LENGTHS_MAX} lengths, got {len(self.buckets)}")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"expected different lengths in ascending order, got {list(self.buckets)}")
        if not 1 <= self.buckets[0] <= self.buckets[-1] <= SAMPLE_BYTES_MAX:
            raise ValueError(f"expected lengths of 1 to {SAMPLE_BYTES_MAX}, got {list(self.buckets)}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """Lengths the first dimension may have, ascending; empty: any."""
        if isinstance(self.to, int):
            return (self.to,)
        return () if isinstance(self.to, str) else self.to

    def dims(self, shapes: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the shape that all samples of a batch get.

        Args:
            shapes: int64[rows, ndim], decoded; a negative row is bad and has no say, nor has one that is too long.
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
    """Return what a recipe's ``pad`` says; None: it has none."""
    return msgspec.json.decode(text.encode(), type=Pad) if text else None


def pad_text(name: str, given: object) -> str:
    """Return what a user wrote as canonical JSON text.

    Raises:
        BadRecipe: it is not understood.
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
    """Return what a RAGGED field looks like when it is padded.

    Raises:
        BadRecipe: it is of another kind, or its type does not have the value.
    """
    if spec.kind is not FieldKind.RAGGED:
        raise BadRecipe(
            f"expected a field whose samples differ in shape to pad, got one that is {spec.kind.value}",
            object=spec.name,
            hint="leave pad out",
            stage="decode",
        )
    dtype = np.dtype(spec.dtype)
    if not _holds(dtype, pad.value):
        raise BadRecipe(f"expected a value that {dtype.name} has to pad with, got {pad.value}", object=spec.name)
    return replace(spec, kind=FieldKind.PADDED)


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Tell whether a dtype has that value; floats may round it, integers may not."""
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype.name).max)
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return low <= value <= high and value == int(value)


def batch_specs(kinds: Iterable[tuple[TensorSpec, Pad | None]]) -> tuple[TensorSpec, ...]:
    """Return all fields of a batch: those of the recipes, and what padding adds.

    Raises:
        BadRecipe: a name comes twice.
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
    """Return all fields of a batch, each of another name.

    Raises:
        BadRecipe: a name comes twice.
    """
    specs = tuple(specs)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise BadRecipe("expected each batch key once, got it twice", object=name, stage="decode")
    return specs


def mask_ndim(ndim: int) -> int:
    """Return the dimensions of a sample's mask: channels or features, the last of several, are all there or none."""
    return max(1, ndim - 1)


class Padding:
    """What a worker knows of a padded field: how large its rows are in this batch."""

    def __init__(self, pad: Pad, dims: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.dims = dims
        self._dtype = dtype
        self._value = np.array(pad.value).astype(dtype)
        self._truncate = pad.truncate

    def decode(
        self, codec: SampleCodec, data: memoryview, shape: list[int], target: NDArray[np.generic], seed: int
    ) -> None:
        """Decode a sample of ``shape`` into the head of its row, and fill up the rest.

        Raises:
            BadSample: it is longer than rows are, or cannot be decoded.
        """
        if len(shape) > DIMS_MAX or np.prod(shape, dtype=np.float64) * self._dtype.itemsize > SAMPLE_BYTES_MAX:
            raise BadSample(f"expected at most {SAMPLE_BYTES_MAX} bytes, got shape {shape}")
        if shape[0] > self.dims[0] and not self._truncate:
            raise BadSample(f"expected a length of at most {self.dims[0]}, got {shape[0]}")
        if len(shape) == 1 and shape[0] <= self.dims[0]:
            codec.decode(data, target[: shape[0]], seed)
            target[shape[0] :] = self._value
            return
        whole: NDArray[np.generic] = np.empty(shape, self._dtype)  # a codec wants its rows to lie back to back
        codec.decode(data, whole, seed)
        head = tuple(slice(0, min(side, room)) for side, room in zip(shape, self.dims, strict=True))
        target[...] = self._value
        target[head] = whole[head]
