"""Writes RecordIO: images with a class number as MXNet's ``im2rec`` packs them, other single objects unchanged.

A payload that contains the magic at a multiple of 4 is written in several parts, as dmlc does: the magic between two
parts is left out, and readers put it back.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from feedd.errors import BadSample, Unsupported
from feedd.pack.packed_sample import IMAGES, LABEL, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord
    from feedd.pack.packed_sample import Fields, PackedSample, Piece

_MAGIC: Final = 0xCED7230A.to_bytes(4, "little")
_LENGTH_MAX: Final = 1 << 29
_IMAGE_HEAD: Final = struct.Struct("<IfQQ")
_LABEL_MAX: Final = 1 << 24  # float32 holds all whole numbers up to here
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordIoWriter:
    """``ShardWriter`` of RecordIO."""

    name = "recordio"
    extension = "rec"

    def check(self, fields: Fields) -> None:
        """Check that samples are images with a label, or single objects."""
        names = set(fields.counts)
        images = fields.sample_count == sum(fields.counts.get(name, 0) for name in names & IMAGES)
        single = fields.sample_count == sum(fields.counts.values())
        if not single and not (images and names <= IMAGES | {LABEL} and fields.counts[LABEL] == fields.sample_count):
            raise Unsupported(
                f"expected samples of one object, or an image and a class number, got {', '.join(sorted(names))}",
                hint="write them in another format, such as tar",
                stage="pack",
            )

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes unchanged: the framing is small."""
        return sizes

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterator[Piece]:
        """Yield the records.

        Raises:
            BadSample: a record is too long, or a class number too large.
        """
        labelled = LABEL in fields.counts and len(fields.counts) > 1
        for number, sample in enumerate(samples):
            head = b""
            value = sample.parts[0].data
            if labelled:
                value = next(part.data for part in sample.parts if part.extension != LABEL)
                label = number_of(next(part for part in sample.parts if part.extension == LABEL))
                if not -_LABEL_MAX <= label <= _LABEL_MAX:
                    message = f"expected a class number of at most {_LABEL_MAX}, got {label}"
                    raise BadSample(message, object=sample.key, stage="pack")
                head = _IMAGE_HEAD.pack(0, label, number, 0)
            if len(head) + len(value) >= _LENGTH_MAX:
                message = f"expected a record of less than {_LENGTH_MAX} bytes, got {len(value)}"
                raise BadSample(message, object=sample.key, stage="pack")
            yield from _record(head, value)

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:  # noqa: ARG002 - the seam's
        """Return nothing."""
        return {}


def _record(head: bytes, value: Piece) -> Iterator[Piece]:
    magics = _magics(head, value)
    if not magics:
        yield _part_head(_WHOLE, len(head) + len(value)) + head
        yield value
        yield bytes(-(len(head) + len(value)) % 4)
        return
    payload = memoryview(b"".join((head, value)))
    starts = [0, *(at + 4 for at in magics)]
    ends = [*magics, len(payload)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        kind = _FIRST if not number else _LAST if number == len(magics) else _MIDDLE
        yield _part_head(kind, end - start)
        yield payload[start:end]
        yield bytes(-(end - start) % 4)


def _magics(head: bytes, value: Piece) -> list[int]:
    """Return where the magic lies at a multiple of 4 in a payload."""
    payload = b"".join((head, value)) if head.find(_MAGIC) >= 0 else b""
    data = payload or bytes(value)
    shift = 0 if payload else len(head)
    found: list[int] = []
    at = data.find(_MAGIC)
    while at >= 0:
        if (at + shift) % 4 == 0:
            found.append(at + shift)
        at = data.find(_MAGIC, at + 1)
    return found


def _part_head(kind: int, length: int) -> bytes:
    return _MAGIC + (kind << 29 | length).to_bytes(4, "little")
