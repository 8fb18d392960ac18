"""Predecoded images: the part of a recipe that is the same in every epoch, done once (``tables.predecode``). Pure.

This part, the prefix, ends before the first random step. It includes decoding, orientation, size, and the first
transforms. Later transforms draw the same numbers as without it (see ``codecs.transforms.sample_rng``), so batches are
bit-identical. A recipe that begins with a random crop has no prefix, because decoding and cropping are one step.
``crop_friendly`` puts a resize in front of such a crop.

Layout of a row in a shard with encoding ``pixels``: if all rows have the same shape, only pixels. Otherwise a u32 0,
the three sides as u32, and the pixels. If a sample has no row, because of an error or lack of room, its original bytes
follow one byte 1. If that would be as long as a row, they follow two bytes 2.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.recipe.params import ImageParams, canonical, params_of
from feedd.recipe.transform_params import (
    CenterCrop,
    ChannelsFirst,
    Grayscale,
    HorizontalFlip,
    Pad,
    RandomResizedCrop,
    Resize,
)
from feedd.values import FieldRecipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.recipe.transform_params import Transform

PIXELS: Final = "pixels"
"""Encoding of predecoded rows, see ``recipe.encodings``."""

HEAD: Final = struct.Struct("<4I")
"""Header of a row whose shape varies: 0, and the three sides."""

_SIDE_LEAST: Final = 256
_MARK_BYTES_MAX: Final = 2
_MARGIN: Final = 8 / 7  # as in a crop of 224 from 256
_SURE: Final = (Resize, CenterCrop, Pad, ChannelsFirst)  # normalize and cast would only make rows larger


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first part of a recipe.

    Attributes:
        params: parameters that do this part.
        done: how many of the recipe's transforms it includes.
        shape: shape of a row; None: each row has its own three sides.
        dtype: dtype of a row.
        whole: whether this part is the whole recipe.
    """

    params: ImageParams
    done: int
    shape: tuple[int, ...] | None
    dtype: str
    whole: bool

    @property
    def width_bytes(self) -> int | None:
        """Bytes of a row; None: the size varies."""
        return None if self.shape is None else math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ReadyField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A field whose images are predecoded.

    Attributes:
        sources: see ``FieldRecipe``. The converted shard has one column for all sources, named after the first.
        params: parameters of its recipe.
    """

    sources: tuple[str, ...]
    params: str


class RowsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a conversion to predecoded rows.

    Attributes:
        format: format of the object.
        fields: fields whose images are predecoded.
        limit_bytes: size limit of the converted shard; samples beyond it keep their original bytes. 0: all samples keep
            them, and nothing is decoded.
    """

    format: str
    fields: tuple[ReadyField, ...]
    limit_bytes: int


def rows_params(format_name: str, fields: Sequence[FieldRecipe], limit_bytes: int) -> str:
    """Return the parameters of the conversion; the same text for the same fields in any order."""
    ready = sorted({(field.sources, field.params) for field in fields})
    return rows_text(RowsParams(format_name, tuple(ReadyField(*one) for one in ready), limit_bytes))


def rows_text(params: RowsParams) -> str:
    """Return the parameters as canonical JSON."""
    return msgspec.json.encode(params, order="sorted").decode()


@functools.lru_cache(maxsize=256)
def prefix_of(params: ImageParams) -> Prefix | None:
    """Return the part of the parameters that can be done in advance; None: there is none."""
    first = params.transforms[0] if params.transforms else None
    cut = params.size is None and isinstance(first, RandomResizedCrop)
    if params.raw or cut or "random_resized_crop" in params.augment:
        return None
    done = 0
    if not params.augment:
        while done < len(params.transforms) and _is_sure(params.transforms[done]):
            done += 1
    inner = msgspec.structs.replace(params, augment=(), transforms=params.transforms[:done])
    spec = inner.spec("")
    whole = not params.augment and done == len(params.transforms)
    return Prefix(inner, done, spec.shape or None, spec.dtype, whole)


def ready_prefix(recipe: FieldRecipe) -> Prefix | None:
    """Return the part of a field's recipe that can be done in advance; None: there is none.

    Raises:
        BadRecipe: the codec or its parameters are unknown.
    """
    params = params_of(recipe) if recipe.codec == "image" else None
    return prefix_of(params) if isinstance(params, ImageParams) else None


def crop_friendly(recipe: FieldRecipe) -> FieldRecipe:
    """Return a recipe that begins with a random crop with a resize in front: the shorter side becomes 256 pixels.

    It becomes 8/7 of the crop's longer side if that is more. Other recipes are returned unchanged.

    Raises:
        BadRecipe: the codec or its parameters are unknown.
    """
    params = params_of(recipe) if recipe.codec == "image" else None
    if not isinstance(params, ImageParams) or params.raw:
        return recipe
    transforms = params.transforms
    if params.size is not None and "random_resized_crop" in params.augment:
        flips = (HorizontalFlip(),) if "flip" in params.augment else ()
        transforms = (RandomResizedCrop(params.size), *flips, *transforms)
    elif params.size is not None or not transforms or not isinstance(transforms[0], RandomResizedCrop):
        return recipe
    cut = transforms[0]
    assert isinstance(cut, RandomResizedCrop)
    longer = cut.size if isinstance(cut.size, int) else max(cut.size)
    side = max(_SIDE_LEAST, math.ceil(longer * _MARGIN))
    params = msgspec.structs.replace(params, size=None, augment=(), transforms=(Resize(side), *transforms))
    return FieldRecipe(recipe.name, recipe.sources, recipe.codec, canonical(params), recipe.encoding, recipe.pad)


def original_mark(size_bytes: int, width_bytes: int | None) -> bytes:
    """Return the bytes to put in front of a sample that keeps its original bytes.

    Args:
        size_bytes: size of the sample.
        width_bytes: size of a row, see ``Prefix``.
    """
    return b"\2\2" if size_bytes + 1 == width_bytes else b"\1"


def original_of(cell: memoryview, width_bytes: int | None) -> memoryview | None:
    """Return the original bytes of a sample; None: the cell is a predecoded row."""
    if not len(cell) or (cell[0] == 0 if width_bytes is None else len(cell) == width_bytes):
        return None
    return cell[min(cell[0], _MARK_BYTES_MAX) :]


def _is_sure(one: Transform) -> bool:
    return isinstance(one, _SURE) or (isinstance(one, Grayscale) and one.p >= 1)
