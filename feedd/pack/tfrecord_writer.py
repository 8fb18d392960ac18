"""Writes TFRecord files of ``tf.train.Example``: each object is a feature that is named by its extension.

Whole numbers are int64 lists, other objects are bytes lists, and ``__key__`` is the sample's key. Features are ordered
by name. The bytes of objects are not copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.pack.packed_sample import KEY, NUMBERS, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Piece

_MASK_DELTA: Final = 0xA282EAD8
_BYTES, _INTS = b"\x0a", b"\x1a"  # tags of the lists in a Feature
_FIRST: Final = b"\x0a"  # tag of field 1, with a length
_SECOND: Final = b"\x12"


class TfRecordWriter:
    """``ShardWriter`` of TFRecord."""

    name = "tfrecord"
    extension = "tfrecord"

    def check(self, fields: Fields) -> None:
        """Do nothing: Examples may have any features."""

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes unchanged: the framing is small."""
        return sizes

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:  # noqa: ARG002 - the seam's
        """Yield the records.

        Raises:
            BadSample: a number is no whole number of 64 bits.
        """
        from awscrt.checksums import crc32c  # noqa: PLC0415 - a quarter of a second, for this format only

        for sample in samples:
            pieces = list(_example(sample))
            length = sum(map(len, pieces)).to_bytes(8, "little")
            crc = 0
            for piece in pieces:
                crc = crc32c(piece, crc)
            yield length + _masked(crc32c(length))
            yield from pieces
            yield _masked(crc)

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:  # noqa: ARG002 - the seam's
        """Return nothing."""
        return {}


def _masked(crc: int) -> bytes:
    return ((((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF).to_bytes(4, "little")


def _example(sample: PackedSample) -> Iterator[Piece]:
    """Yield the pieces of an Example: small ones, and the objects themselves."""
    entries = [_entry(KEY, _BYTES, sample.key.encode("utf-8", "surrogateescape"))]
    for part in sample.parts:
        if part.extension in NUMBERS:
            entries.append(_entry(part.extension, _INTS, varint(number_of(part) & ((1 << 64) - 1))))
        else:
            entries.append(_entry(part.extension, _BYTES, part.data))
    entries.sort(key=lambda one: one[0])
    yield _FIRST + varint(sum(len(head) + len(value) for _, head, value in entries))
    for _, head, value in entries:
        yield head
        yield value


def _entry(name: str, kind: bytes, value: Piece) -> tuple[str, bytes, Piece]:
    """Return a feature's name, all bytes of its entry before the value, and the value."""
    raw = name.encode()
    head = _FIRST + varint(len(value))  # of the only value in the list
    for tag in (kind, _SECOND):
        head = tag + varint(len(head) + len(value)) + head
    head = _FIRST + varint(len(raw)) + raw + head
    return name, _FIRST + varint(len(head) + len(value)) + head, value


def varint(number: int) -> bytes:
    """Return a number of 64 bits in protobuf's variable length."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
