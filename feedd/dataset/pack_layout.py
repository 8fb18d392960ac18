"""The layout of a pack in the cache: a table of its objects, then their bytes, concatenated in the same order. Pure.

Little-endian: magic ``feeddpak``, u32 version, u32 objects, u64 bytes of all keys. Then int64[objects], the bytes of
each object, or the complement of that number if the object is lost and zeros replace it. Then int64[objects], the
sample number of each object (from 0, in order), and int64[objects], the end of each key.

Then the keys, UTF-8, relative to the folder of the dataset's URL, and zeros up to a multiple of 64. The listing decides
the length of the table, and so the size of the pack. In packs of a manifest's lines (``dataset.line_packs``), a
``LineObject`` as JSON replaces each key.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.values import ObjectRef

TAG: Final = "pack-"
"""Start of a pack's etag; a digest over the whole content follows."""

LINES_TAG: Final = f"{TAG}lines-"
"""Start of the etag of a pack of a manifest's lines; a digest holds no such letters."""

_MAGIC: Final = b"feeddpak"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQ")
HEAD_BYTES: Final = _HEAD.size
_ALIGN_BYTES: Final = 64
_OBJECTS_MAX: Final = 1 << 20
_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Table:
    """The objects of a pack.

    Attributes:
        sizes: int64[objects], bytes of each object.
        sample: int64[objects], the sample of each object.
        key_ends: int64[objects], end of each object's key in ``keys``.
        keys: UTF-8, concatenated.
        lost: numbers of the lost objects, ascending.
    """

    sizes: NDArray[np.int64]
    sample: NDArray[np.int64]
    key_ends: NDArray[np.int64]
    keys: bytes
    lost: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the table itself, where the first object begins."""
        return table_bytes(len(self.sizes), len(self.keys))

    def names(self) -> list[str]:
        """Return all keys."""
        ends: list[int] = self.key_ends.tolist()
        return [
            self.keys[start:end].decode("utf-8", "surrogatepass")
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def starts(self) -> NDArray[np.int64]:
        """Return int64[objects + 1]: the offset of each object in the pack, and the end of the last object."""
        starts = np.full(len(self.sizes) + 1, self.size_bytes, np.int64)
        starts[1:] += np.cumsum(self.sizes)
        return starts

    def render(self) -> bytes:
        """Return the table as stored at the start of the pack."""
        head = _HEAD.pack(_MAGIC, _VERSION, len(self.sizes), len(self.keys))
        sizes = self.sizes.copy()
        sizes[list(self.lost)] = ~sizes[list(self.lost)]
        columns = (np.ascontiguousarray(column, "<i8").tobytes() for column in (sizes, self.sample, self.key_ends))
        return b"".join((head, *columns, self.keys)).ljust(self.size_bytes, b"\0")


class LineObject(NamedTuple):
    """An object in a pack of a manifest's lines.

    Attributes:
        line: number of the line in the manifest, from 1; of the text, its first line.
        attribute: attribute that names the object; empty: the text of the lines.
        url: URL of the object, or of the manifest; empty: the line names no object.
        fault: why the line names no object.
    """

    line: int
    attribute: str
    url: str
    fault: str = ""

    def render(self) -> bytes:
        """Return the name of the object in the table."""
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls, name: str) -> LineObject:
        """Return the object of a name.

        Raises:
            ValueError: the name is not one of such a table.
        """
        try:
            return msgspec.json.decode(name, type=LineObject)
        except msgspec.MsgspecError as error:
            raise ValueError(f"expected an object of a manifest's line, got {error}") from error


def is_pack(ref: ObjectRef) -> bool:
    """Whether a shard is a pack of objects."""
    return ref.etag.startswith(TAG)


def has_lines(ref: ObjectRef) -> bool:
    """Whether a shard is a pack of a manifest's lines."""
    return ref.etag.startswith(LINES_TAG)


def table_bytes(count: int, keys_bytes: int) -> int:
    """Return the bytes of a table of ``count`` objects with keys of ``keys_bytes``."""
    return -(-(_HEAD.size + 8 * _COLUMNS * count + keys_bytes) // _ALIGN_BYTES) * _ALIGN_BYTES


def head_bytes(head: bytes) -> int:
    """Return the bytes of a pack's table from its first ``HEAD_BYTES``; bounded by the largest table.

    Raises:
        ValueError: the data is no pack.
    """
    if len(head) < HEAD_BYTES:
        raise ValueError(f"expected a pack's head of {HEAD_BYTES} bytes, got {len(head)}")
    magic, version, count, keys_bytes = _HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION or count > _OBJECTS_MAX:
        raise ValueError(f"expected a pack of version {_VERSION}, got {magic!r} of version {version}, {count} objects")
    return table_bytes(count, keys_bytes)


def parse(data: memoryview, total: int | None = None) -> Table:
    """Return the table of a pack, checked against the pack's size.

    Args:
        data: the whole pack, or its table, borrowed for the call.
        total: bytes of the whole pack; None: ``data`` is the whole pack.

    Raises:
        ValueError: the data is no pack, or its numbers do not fit together; the message is one line.
    """
    total = len(data) if total is None else total
    table_end = head_bytes(bytes(data[:HEAD_BYTES]))
    _, _, count, keys_bytes = _HEAD.unpack_from(data)
    if table_end > min(total, len(data)):
        raise ValueError(f"expected a table of {count} objects with {keys_bytes} bytes of keys, got {total} bytes")
    columns = np.frombuffer(data, "<i8", _COLUMNS * count, _HEAD.size).reshape(_COLUMNS, count).astype(np.int64)
    keys_at = _HEAD.size + columns.nbytes
    sizes, sample, key_ends = columns
    lost = np.flatnonzero(sizes < 0)
    sizes[lost] = ~sizes[lost]
    table = Table(sizes, sample, key_ends, bytes(data[keys_at : keys_at + keys_bytes]), tuple(lost.tolist()))
    _check(table, total)
    return table


def _check(table: Table, total: int) -> None:
    sizes, ends, sample = table.sizes, table.key_ends, table.sample
    left = total - table.size_bytes
    if (sizes < 0).any() or (sizes > left).any() or int(sizes.sum()) != left:
        raise ValueError(f"expected objects of {left} bytes together, got {sizes.sum()}")
    if (np.diff(ends, prepend=0) < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(table.keys):
        raise ValueError(f"expected ends of keys up to {len(table.keys)}, got others")
    steps = np.diff(sample, prepend=-1)
    if len(sample) and (steps[0] != 1 or ((steps != 0) & (steps != 1)).any()):
        raise ValueError("expected samples numbered from 0 in order, got others")
