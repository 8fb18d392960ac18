"""The layout of a slot: the regions of a batch's fields, with their offset and shape tables.

Regions follow each other in the order of the specs. Each is aligned to 256 bytes, which suits copies to devices best.
A region has values, then int64 offsets[rows + 1] (in elements for RAGGED, in bytes for TEXT and JSON). A RAGGED field
with more than one dimension also has int64 shapes[rows, ndim]. Values of a ragged field lie back to back.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.values import FieldKind, Region, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.batching.gather import Text
    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe

ALIGN_BYTES: Final = 256

_IMAGE_GROWTH: Final = 16
"""Assumed ratio of decoded to encoded bytes of an unmeasured image: JPEG has about 2 of 24 bits per pixel, PNG more."""

_WIDENED_GROWTH: Final = {"bfloat16": 2, "float8_e4m3fn": 4, "float8_e5m2": 4}
"""Ratio of decoded to stored bytes of numbers that become float32, by their encoding."""


@dataclass(frozen=True, slots=True)
class FieldRegion:
    """One field of a laid-out batch.

    DENSE and PADDED fields have rows of one size; others have tables.

    Attributes:
        spec: the spec of the field.
        region: the region of the field in the slot.
        out_at: int64[rows], first byte of each row's values, from the slot's start.
        offsets: int64[rows + 1] if rows differ in size, else None.
        shapes: int64[rows, ndim] if rows differ in size (one column of lengths if ndim is 1), else None.
    """

    spec: TensorSpec
    region: Region
    out_at: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = None
    shapes: NDArray[np.int64] | None = None

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """int64[rows], bytes of each row's values."""
        itemsize = np.dtype(self.spec.dtype).itemsize
        if self.offsets is not None:
            return np.diff(self.offsets) * itemsize
        dims = self.region.dims if self.spec.kind is FieldKind.PADDED else self.spec.shape
        return np.full(len(self.out_at), math.prod(dims) * itemsize, np.int64)


@dataclass(frozen=True, slots=True)
class Layout:
    """A laid-out batch: pure arithmetic, no bytes are written.

    Attributes:
        rows: samples in the batch.
        fields: one region per spec, in the order of the specs.
        size_bytes: bytes of the slot that the batch takes.
    """

    rows: int
    fields: tuple[FieldRegion, ...]
    size_bytes: int

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of all fields, as a lease lists them."""
        return tuple(place.region for place in self.fields)

    def field(self, name: str) -> FieldRegion:
        """Return the region of the field ``name``."""
        return next(place for place in self.fields if place.spec.name == name)


def aligned(at: int) -> int:
    """Return the next multiple of ``ALIGN_BYTES``."""
    return (at + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES


def _dense_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def lay_out(
    specs: Sequence[TensorSpec],
    rows: int,
    shapes_or_lengths: Mapping[str, NDArray[np.int64]],
    dims: Mapping[str, tuple[int, ...]] | None = None,
) -> Layout:
    """Place ``rows`` rows of ``specs``.

    Args:
        specs: fields, in the session's order.
        rows: samples.
        shapes_or_lengths: by field name, for every field that is neither DENSE nor PADDED: int64[rows, ndim] shapes, or
            int64[rows] lengths (elements for RAGGED, bytes for TEXT and JSON). Negative entries (rows that are known
            to be bad) take no space.
        dims: by field name, shape of every row of each PADDED field.

    Raises:
        KeyError: a field that is not DENSE has no entry.
    """
    places: list[FieldRegion] = []
    at = 0
    for spec in specs:
        if spec.kind is FieldKind.DENSE:
            place, at = _lay_even(spec, rows, aligned(at))
        elif spec.kind is FieldKind.PADDED:
            place, at = _lay_even(spec, rows, aligned(at), (dims or {})[spec.name])
        else:
            place, at = _lay_ragged(spec, rows, shapes_or_lengths[spec.name], aligned(at))
        places.append(place)
    return Layout(rows, tuple(places), at)


def _lay_even(spec: TensorSpec, rows: int, at: int, dims: tuple[int, ...] = ()) -> tuple[FieldRegion, int]:
    row_bytes = math.prod(dims or spec.shape) * np.dtype(spec.dtype).itemsize
    out_at = at + np.arange(rows, dtype=np.int64) * row_bytes
    return FieldRegion(spec, Region(at, rows * row_bytes, dims=dims), out_at), at + rows * row_bytes


def _lay_ragged(spec: TensorSpec, rows: int, sizes: NDArray[np.int64], at: int) -> tuple[FieldRegion, int]:
    shapes = np.maximum(sizes.reshape(rows, max(1, spec.ndim)), 0)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(shapes.prod(axis=1), out=offsets[1:])
    itemsize = np.dtype(spec.dtype).itemsize
    values_bytes = int(offsets[-1]) * itemsize
    offsets_at = aligned(at + values_bytes)
    end = offsets_at + offsets.nbytes
    shapes_at = 0
    if spec.kind is FieldKind.RAGGED and spec.ndim > 1:
        shapes_at = aligned(end)
        end = shapes_at + shapes.nbytes
    region = Region(at, values_bytes, offsets_at, shapes_at)
    return FieldRegion(spec, region, at + offsets[:-1] * itemsize, offsets, shapes), end


def slot_bytes(
    specs: Sequence[TensorSpec],
    rows: int,
    index: ShardIndex,
    recipes: Sequence[FieldRecipe],
    measured: Mapping[str, NDArray[np.int64]] | None = None,
    dims: Mapping[str, tuple[int, ...]] | None = None,
) -> int:
    """Estimate the bytes of a slot for ``rows`` rows from a first shard, rounded up to pages.

    The size is exact for DENSE fields. For others it is 1.5 times the mean, times rows, plus the largest sample. A
    larger batch is sent inline, so this affects speed but not correctness.

    Args:
        specs: all fields, with ``__key__`` and ``__url__`` (512 bytes per row are assumed for these).
        rows: samples per batch.
        index: the index of a first shard.
        recipes: recipes of decoded fields; other fields in ``specs`` are literal text.
        measured: by field name, decoded shapes int64[samples, ndim] of some samples; without them, images are assumed
            to grow 16 times by decoding and other fields not at all.
        dims: by field name, the likely maximum shape of a row of each PADDED field.
    """
    by_name = {recipe.name: recipe for recipe in recipes}
    total = 0
    for spec in specs:
        if spec.kind is FieldKind.DENSE:
            total += aligned(rows * _dense_bytes(spec))
            continue
        if spec.kind is FieldKind.PADDED:
            total += aligned(rows * math.prod((dims or {})[spec.name]) * np.dtype(spec.dtype).itemsize)
            continue
        tables = aligned((rows + 1) * 8) + (aligned(rows * spec.ndim * 8) if spec.ndim > 1 else 0)
        sizes = sample_bytes(spec, by_name.get(spec.name), index, (measured or {}).get(spec.name))
        values = 1.5 * float(sizes.mean()) * rows + float(sizes.max()) if len(sizes) else 0.0
        total += tables + aligned(math.ceil(values))
    return slot_pages(total)


def slot_pages(size_bytes: int) -> int:
    """Round a size up to whole pages, at least one."""
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def sample_bytes(
    spec: TensorSpec, recipe: FieldRecipe | None, index: ShardIndex, measured: NDArray[np.int64] | None
) -> NDArray[np.integer]:
    """Return decoded bytes of samples: measured samples, or else an estimate for all samples of a shard."""
    if recipe is None:
        return np.full(1, 512, np.int64)
    if measured is not None:
        shapes = measured.reshape(len(measured), -1)
        elements: NDArray[np.int64] = shapes[(shapes >= 0).all(axis=1)].prod(axis=1)
        return elements * np.dtype(spec.dtype).itemsize
    columns = [index.fields.index(source) for source in recipe.sources if source in index.fields]
    sizes = index.sizes_of(columns)
    growth = _IMAGE_GROWTH if recipe.codec == "image" and spec.ndim > 1 else 1
    if recipe.encoding == "pixels":  # already decoded
        growth = np.dtype(spec.dtype).itemsize
    growth = _WIDENED_GROWTH.get(recipe.encoding.partition("[")[0], growth)
    known = sizes if (sizes >= 0).all() else sizes[sizes >= 0]
    return known if growth == 1 else known.astype(np.int64) * growth


def write_tables(view: memoryview, layout: Layout, literals: Mapping[str, Text] | None = None) -> None:
    """Write offsets and shapes, and the text of literal fields, into a slot.

    Args:
        view: the slot, at least as long as the layout; borrowed for the call.
        layout: the layout of the batch; it must use the lengths of the same texts.
        literals: texts by field name (``__key__``, ``__url__``).
    """
    for place in layout.fields:
        region = place.region
        if place.offsets is not None:
            _int64(view, region.offsets_at, place.offsets.size)[:] = place.offsets
        if place.shapes is not None and region.shapes_at:
            _int64(view, region.shapes_at, place.shapes.size)[:] = place.shapes.reshape(-1)
        text = (literals or {}).get(place.spec.name)
        if text is not None:
            assert len(text.blob) == region.values_bytes, f"{len(text.blob)} bytes of text, {region.values_bytes} laid"
            view[region.values_at : region.values_at + region.values_bytes] = text.blob


def _int64(view: memoryview, at: int, count: int) -> NDArray[np.int64]:
    return np.frombuffer(view, np.int64, count, at)


def drop_rows(view: memoryview, layout: Layout, bad_rows: Sequence[int] | NDArray[np.int64]) -> Layout:
    """Remove bad rows from a slot, in place; the order of the other rows is kept.

    Regions stay where they are and get shorter. The tables are written anew.

    Args:
        view: the slot, decoded and with its tables.
        layout: the layout of the slot.
        bad_rows: rows to remove, in any order; repeats are allowed.

    Returns:
        The layout of the remaining rows.
    """
    keep = np.ones(layout.rows, np.bool_)
    keep[np.asarray(bad_rows, np.int64)] = False
    if keep.all():
        return layout
    places = tuple(_close_gaps(view, place, keep) for place in layout.fields)
    left = Layout(int(keep.sum()), places, layout.size_bytes)
    write_tables(view, left)
    return left


def _close_gaps(view: memoryview, place: FieldRegion, keep: NDArray[np.bool_]) -> FieldRegion:
    """Move the kept rows of one field together, run by run."""
    itemsize = np.dtype(place.spec.dtype).itemsize
    row_bytes = place.row_bytes
    ends = place.out_at + row_bytes
    edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))  # start, stop, start, stop, ...
    values = np.frombuffer(view, np.uint8)
    at = place.region.values_at
    for start, stop in edges.reshape(-1, 2).tolist():
        source, end = int(place.out_at[start]), int(ends[stop - 1])
        if source != at:
            values[at : at + end - source] = values[source:end]  # numpy copies overlapping runs correctly
        at += end - source
    region = replace(place.region, values_bytes=at - place.region.values_at)
    lengths = row_bytes[keep]
    out_at = place.region.values_at + np.cumsum(lengths) - lengths
    offsets = None
    if place.offsets is not None:
        offsets = np.concatenate(([0], np.cumsum(lengths // itemsize)))
    shapes = None if place.shapes is None else place.shapes[keep]
    return FieldRegion(place.spec, region, out_at, offsets, shapes)
