"""Predecoded images: the part of a recipe that is the same in every epoch, done once (``convert.predecode``). Pure.

That part ends before the first random step: decoding, orientation, size, and the first transforms. Later transforms
draw the same numbers as without it (see ``codecs.transforms.sample_rng``), so batches are equal, bit by bit. A recipe
that begins with a random cut has no such part: decoding and cutting are one. ``crop_friendly`` puts a size before it.

How a row lies in a shard, stored as ``pixels``: where all rows are alike, its pixels alone. Otherwise u32 0 and the
three sides, then pixels. A sample of which no row could be made, or for which there is no room, is kept as it came,
behind one byte 1; or two bytes 2, where it would be as long as a row with one.
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
"""How ready rows are stored, see ``recipe.encodings``."""

HEAD: Final = struct.Struct("<4I")
"""In front of a row that has a shape of its own: 0, and its three sides."""

_SIDE_LEAST: Final = 256
_MARK_BYTES_MAX: Final = 2
_MARGIN: Final = 8 / 7  # 224 is cut from 256
_SURE: Final = (Resize, CenterCrop, Pad, ChannelsFirst)  # normalize and cast only make rows larger


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first part of a recipe.

    Attributes:
        params: that do it.
        done: how many of the recipe's transforms they include.
        shape: of a row; None: each has its own, of three sides.
        dtype: of a row.
        whole: nothing is left to do.
    """

    params: ImageParams
    done: int
    shape: tuple[int, ...] | None
    dtype: str
    whole: bool

    @property
    def width_bytes(self) -> int | None:
        """Bytes of a row; None: they vary."""
        return None if self.shape is None else math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ReadyField(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A field whose images are made ready.

    Attributes:
        sources: see ``FieldRecipe``. The made shard has one column for all, named as the first.
        params: of its recipe.
    """

    sources: tuple[str, ...]
    params: str


class RowsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard is made of.

    Attributes:
        format: of the object.
        fields: whose images are made ready.
        limit_bytes: of the made shard: samples for which there is no room then are kept as they came. 0: all are, and
            nothing is decoded.
    """

    format: str
    fields: tuple[ReadyField, ...]
    limit_bytes: int


def rows_params(format_name: str, fields: Sequence[FieldRecipe], limit_bytes: int) -> str:
    """Return the parameters of the form; the same for the same fields in any order."""
    ready = sorted({(field.sources, field.params) for field in fields})
    return rows_text(RowsParams(format_name, tuple(ReadyField(*one) for one in ready), limit_bytes))


def rows_text(params: RowsParams) -> str:
    """Return the parameters as canonical JSON."""
    return msgspec.json.encode(params, order="sorted").decode()


@functools.lru_cache(maxsize=256)
def prefix_of(params: ImageParams) -> Prefix | None:
    """Return what can be done ahead; None: nothing."""
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
    """Return what can be done ahead of a field's recipe; None: nothing.

    Raises:
        BadRecipe: unknown codec or parameters.
    """
    params = params_of(recipe) if recipe.codec == "image" else None
    return prefix_of(params) if isinstance(params, ImageParams) else None


def crop_friendly(recipe: FieldRecipe) -> FieldRecipe:
    """Return a recipe that begins with a random cut as one that first brings the shorter side to 256 pixels.

    Or to eight sevenths of the longer side of what is cut, if that is more. Others are returned as they are.

    Raises:
        BadRecipe: unknown codec or parameters.
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
    return FieldRecipe(recipe.name, recipe.sources, recipe.codec, canonical(params), recipe.stored, recipe.pad)


def original_mark(size_bytes: int, width_bytes: int | None) -> bytes:
    """Return what is put in front of a sample that is kept as it came.

    Args:
        size_bytes: of the sample.
        width_bytes: of a row, see ``Prefix``.
    """
    return b"\2\2" if size_bytes + 1 == width_bytes else b"\1"


def original_of(cell: memoryview, width_bytes: int | None) -> memoryview | None:
    """Return the sample as it came; None: the cell is a row."""
    if not len(cell) or (cell[0] == 0 if width_bytes is None else len(cell) == width_bytes):
        return None
    return cell[min(cell[0], _MARK_BYTES_MAX) :]


def _is_sure(one: Transform) -> bool:
    return isinstance(one, _SURE) or (isinstance(one, Grayscale) and one.p >= 1)
