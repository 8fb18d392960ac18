"""Spans: parts of one large object that are shards of their own, each a whole number of samples. Pure.

A span's ref has the object's key, the span's own size, and an etag of ``span-START-OBJECT_BYTES-ETAG``. So a ref alone
tells which bytes of which version of which object the shard is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.shard_index import NumberedIndex, RegularIndex, ShardIndex

if TYPE_CHECKING:
    from feedd.values import ObjectRef

_TAG: Final = "span-"
_LEAST: Final = 2  # spans of an object; a smaller object stays whole


def is_span(ref: ObjectRef) -> bool:
    """Whether a shard is a span of a larger object."""
    return ref.etag.startswith(_TAG)


def object_of(ref: ObjectRef) -> tuple[ObjectRef, int]:
    """Return the object that a shard belongs to, and the shard's first byte in it."""
    if not is_span(ref):
        return ref, 0
    start, size, etag = ref.etag.removeprefix(_TAG).split("-", 2)
    return replace(ref, size_bytes=int(size), etag=etag), int(start)


@dataclass(frozen=True, slots=True)
class SampleGrid:
    """How the samples of an object lie in it: at regular distances.

    Attributes:
        at: first byte of the first sample.
        step_bytes: bytes from the start of one sample to the start of the next.
        size_bytes: bytes of a sample; the last one may have fewer.
        count: number of samples.
        field: name of the only field.
        encoding: how a value is stored, see ``recipe.encodings``.
    """

    at: int
    step_bytes: int
    size_bytes: int
    count: int
    field: str
    encoding: str


@dataclass(frozen=True, slots=True)
class Span:
    """The samples of a span.

    Attributes:
        grid: the samples of the object.
        first: number of the span's first sample in the object.
        count: number of samples.
    """

    grid: SampleGrid
    first: int
    count: int

    def is_regular(self, span_bytes: int) -> bool:
        """Whether all samples of the span have one size, so that its index has no columns."""
        return (self.count - 1) * self.grid.step_bytes + self.grid.size_bytes <= span_bytes

    def index(self, span_bytes: int) -> ShardIndex:
        """Return the index of the span's samples; a key is the sample's number in the object.

        Args:
            span_bytes: size of the span.
        """
        grid, count = self.grid, self.count
        named = (grid.field,), (grid.encoding,)
        if self.is_regular(span_bytes):
            strides = ((0, grid.step_bytes, grid.size_bytes),)
            return RegularIndex(named[0], strides, count, named[1]).numbered_from(self.first)
        starts = np.arange(count, dtype=np.int64) * grid.step_bytes
        sizes = np.minimum(grid.size_bytes, span_bytes - starts)
        return NumberedIndex(named[0], starts[None], sizes[None], count, named[1], first=self.first)


def split(ref: ObjectRef, grid: SampleGrid, span_bytes: int) -> list[tuple[ObjectRef, Span]]:
    """Return the spans of an object, of about equal size; empty: the object stays whole.

    An object of at least ``2 * span_bytes`` has spans of ``span_bytes`` to ``1.5 * span_bytes``, if its samples are
    small. Neighbours share the bytes of samples that overlap.

    Args:
        ref: the object.
        grid: its samples.
        span_bytes: least size of a span.
    """
    used = min((grid.count - 1) * grid.step_bytes + grid.size_bytes, ref.size_bytes - grid.at)
    count = min(used // span_bytes, grid.count)
    if count < _LEAST:
        return []
    found = []
    for number in range(count):
        first, end = grid.count * number // count, grid.count * (number + 1) // count
        start = grid.at + first * grid.step_bytes
        stop = min(grid.at + (end - 1) * grid.step_bytes + grid.size_bytes, ref.size_bytes)
        tag = f"{_TAG}{start}-{ref.size_bytes}-{ref.etag}"
        found.append((replace(ref, size_bytes=stop - start, etag=tag), Span(grid, first, end - first)))
    return found
