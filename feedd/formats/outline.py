"""Outlines: what a few bytes of a shard tell of the whole shard, so that its samples are counted without fetching it.

A reader with ``outline`` is called again and again, each time with the range that it returned before. If the bytes do
not tell enough, or are broken, it raises an error, and the whole shard is read instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from feedd.errors import BadShard
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.formats.format_spec import FormatSpec, HeaderReader
    from feedd.protocols import PartialObject
    from feedd.shard_index import ShardIndex

_HEAD_BYTES: Final = 64 << 10
_HEAD_BYTES_MAX: Final = 64 << 20
_WINDOW_BYTES: Final = 64 << 10
_WORTH_BYTES: Final = 1 << 20
"""A request costs about as much as this many bytes."""

REQUESTS_MAX: Final = 256
"""Limit for the requests of one outline: they follow one another."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The facts of a shard that a count needs.

    Attributes:
        rows: number of samples.
        columns: name and encoding of each field.
        unread: see ``ShardIndex``.
    """

    rows: int
    columns: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, index: ShardIndex) -> Outline:
        """Return the outline of a whole shard."""
        encodings = map(index.encoding_of, range(len(index.fields)))
        return cls(index.sample_count, tuple(zip(index.fields, encodings, strict=True)), index.unread)


@runtime_checkable
class OutlinedFormat(Protocol):
    """A reader of shards whose headers tell the samples."""

    def outline(self, held: PartialObject, url: str) -> Outline | ByteRange:
        """Return the outline of a shard, or the range that must be held first.

        Raises:
            BadShard, Unsupported: the headers are broken, or tell too little.
        """


def is_outlined(spec: FormatSpec) -> bool:
    """Whether the readers of a format make outlines."""
    return isinstance(spec.reader, OutlinedFormat)


def holds(held: PartialObject, wanted: ByteRange) -> bool:
    """Whether all bytes of a range are held."""
    return not wanted.size_bytes or any(one.start <= wanted.start and wanted.end <= one.end for one in held.spans)


def of_head(
    held: PartialObject, end_of: Callable[[memoryview], int], outline: Callable[[memoryview], Outline]
) -> Outline | ByteRange:
    """Return the outline of a shard whose first bytes tell it.

    Args:
        held: the held parts.
        end_of: returns the end of the header, from the first 64 KiB of the shard.
        outline: reads the outline from the whole shard, of which only the header is held; other bytes are zero.
    """
    first = ByteRange(0, min(held.size_bytes, _HEAD_BYTES))
    if not holds(held, first):
        return first
    head = ByteRange(0, min(end_of(held.data[: first.end]), held.size_bytes))
    if head.end > _HEAD_BYTES_MAX:
        raise BadShard(f"expected a header of at most {_HEAD_BYTES_MAX} bytes, got {head.end}", stage="decode")
    return outline(held.data) if holds(held, head) else head


def of_chain(held: PartialObject, url: str, reader: HeaderReader) -> Outline | ByteRange:
    """Return the outline of a shard whose headers lie between the samples, and each tells where the next one is.

    Raises:
        BadShard: the headers are broken, or lie so close together that the whole shard is fetched sooner.
    """
    try:
        return Outline.of(reader.index(_HeldBytes(held), url))
    except _NotHeldError as missing:
        at = missing.at
    requests = sum(-(-span.size_bytes // _WINDOW_BYTES) for span in held.spans)
    if requests and at < requests * max(_WORTH_BYTES, held.size_bytes // REQUESTS_MAX):
        raise BadShard(f"expected few headers, got {requests} before byte {at}", object=url, stage="decode")
    return ByteRange(at, min(held.size_bytes, at + _WINDOW_BYTES))


class _NotHeldError(Exception):
    """A reader came to bytes that are not held.

    Attributes:
        at: the first of them.
    """

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _HeldBytes:
    """The bytes of a shard for a reader that takes slices of them; those that are not held raise ``_NotHeldError``."""

    def __init__(self, held: PartialObject) -> None:
        self._object = held

    def __len__(self) -> int:
        return self._object.size_bytes

    def __getitem__(self, part: slice) -> memoryview:
        start, end, _ = part.indices(self._object.size_bytes)
        if start < end and not holds(self._object, ByteRange(start, end)):
            raise _NotHeldError(start)
        return self._object.data[start:end]
