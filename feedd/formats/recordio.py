"""RecordIO, as the tools of dmlc, MXNet and SageMaker write it.

A part is ``u32 0xCED7230A, u32 kind << 29 | length, payload, zeros up to a multiple of 4`` [dmlc-core,
include/dmlc/recordio.h]. Kind 0 is a whole record. A record in several parts is one part of kind 1, any number of
kind 2, and one of kind 3. There are no checksums and no index; an ``.idx`` beside the shard is not needed.

A split record is not contiguous, so a shard with a split record is refused here. If the URL begins with
``recordio-join+``, records are joined first (``tables.recordio_join``).

A record is an image with a label, as MXNet's ``im2rec`` packs them, or plain bytes. If the first record has an image
header followed by an encoded image, the shard holds images. ``recordio-image+`` or ``recordio-raw+`` before the URL
override this. Images have the fields ``label`` (one float32, or several), ``id`` and ``image``; bytes have the field
``data``.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_spec import FormatSpec, cut_at
from feedd.formats.framing import ShardReader, samples_max
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAGIC: Final = 0xCED7230A
DATA: Final = "data"
"""The field of records that are not images."""

_HEAD: Final = struct.Struct("<II")
_KIND_BITS: Final = 29
_LENGTH_MASK: Final = (1 << _KIND_BITS) - 1
_FIRST, _LAST = 1, 3  # kind 0 is a whole record, 2 a middle part
_IMAGE_HEAD: Final = 24  # u32 number of labels, f32 label, u64 id, u64 id2
_LABELS_MAX: Final = 1 << 16
_IMAGE_STARTS: Final = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"BM")


def head(length: int) -> bytes:
    """Return the header of a record in one part."""
    return _HEAD.pack(MAGIC, length)


class PartsReader(ShardReader):
    """Reads the parts of one shard."""

    def records(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and size of each record's payload, int64[records] each.

        Raises:
            BadShard: see ``parts``; or a record has several parts.
        """
        starts: list[int] = []
        sizes: list[int] = []
        split_at = None
        for kind, start, end in self.parts():
            if kind and split_at is None:
                split_at = start - 8
            starts.append(start)
            sizes.append(end - start)
        if split_at is not None:
            raise BadShard(
                f"expected records in one part each, got a record in several parts at byte {split_at}",
                object=self._url,
                hint="write recordio-join+ before the URL: feedd then joins such records, once per node",
                stage="decode",
            )
        return np.array(starts, np.int64), np.array(sizes, np.int64)

    def records_in_parts(self) -> list[list[tuple[int, int]]]:
        """Return (start, end) of each part of each record.

        Raises:
            BadShard: see ``parts``.
        """
        found: list[list[tuple[int, int]]] = []
        for kind, start, end in self.parts():
            if kind <= _FIRST:
                found.append([(start, end)])
            else:
                found[-1].append((start, end))
        return found

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield kind, start and end of each part's payload, in order.

        Raises:
            BadShard: a header is missing or cut short, or the order of the parts forms no records.
        """
        data, at, total, unpack = self._data, 0, len(self._data), _HEAD.unpack_from
        open_at, count, most = -1, 0, samples_max()
        while at < total:
            if at + 8 > total:
                self.fail(at, "the 8 bytes of a part's header", f"end of data after {total} bytes")
            magic, word = unpack(data, at)
            if magic != MAGIC:
                self.fail(at, f"the magic {MAGIC:#x} of a part", f"{magic:#x}")
            kind, body = word >> _KIND_BITS, at + 8
            end = body + (word & _LENGTH_MASK)
            if end > total:
                self.fail(body, f"{end - body} bytes of payload", f"end of data after {total} bytes")
            if kind <= _FIRST:
                if open_at >= 0:
                    self.fail(at, "another part of the record", f"the start of the next record (kind {kind})")
                if kind:
                    open_at = at
            elif open_at < 0 or kind > _LAST:
                self.fail(at, "the start of a record", f"a part of kind {kind}")
            elif kind == _LAST:
                open_at = -1
            count += 1
            if count > most:
                self.check_cells(1, count)
            yield kind, body, end
            at = end + (-end % 4)
        if open_at >= 0:
            self.fail(open_at, "the last part of the record", f"end of data after {total} bytes")


def records_end(data: memoryview) -> int:
    """Return the end of the last whole record in a shard's first bytes; 0: there is none."""
    end = 0
    with suppress(BadShard):
        for kind, _, stop in PartsReader(data, "").parts():
            if kind in {0, _LAST}:
                end = stop + (-stop % 4)
    return end if end <= len(data) else 0


class RecordIoFormat:
    """``protocols.ShardFormat`` of RecordIO; stateless.

    Args:
        name: name of the format.
        images: whether records are images with labels; None: the first record decides.
    """

    def __init__(self, name: str, *, images: bool | None = None) -> None:
        self._name, self._images = name, images

    @property
    def name(self) -> str:
        """Name of the format in the registry."""
        return self._name

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the records; a key is the record's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: broken framing, a record in several parts, or a record without an image header among images.
        """
        return _Reader(data, url).read(images=self._images)


class _Reader(PartsReader):
    """Reads the records of one shard."""

    def read(self, *, images: bool | None) -> ShardIndex:
        """Read the parts, and the headers of images; return the index."""
        starts, sizes = self.records()
        if images is None:
            images = bool(len(starts)) and self._is_image(int(starts[0]), int(sizes[0]))
        if not images:
            return NumberedIndex((DATA,), starts[None], sizes[None], len(starts))
        return self._image_index(starts, sizes)

    def _is_image(self, start: int, size: int) -> bool:
        if size < _IMAGE_HEAD:
            return False
        labels = int.from_bytes(self._data[start : start + 4], "little")
        at = _IMAGE_HEAD + 4 * labels
        return labels <= _LABELS_MAX and bytes(self._data[start + at : start + min(at + 4, size)]).startswith(
            _IMAGE_STARTS
        )

    def _image_index(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> ShardIndex:
        self.check_cells(3, len(starts))
        short = np.flatnonzero(sizes < _IMAGE_HEAD)
        if len(short):
            at = int(starts[short[0]])
            self.fail(at, f"an image record's header of {_IMAGE_HEAD} bytes", f"a record of {sizes[short[0]]} bytes")
        raw = np.frombuffer(self._data, np.uint8)
        labels = np.zeros(len(starts), np.int64)
        for byte in range(4):
            labels += raw[starts + byte].astype(np.int64) << 8 * byte
        heads = _IMAGE_HEAD + 4 * labels
        wrong = np.flatnonzero((labels > _LABELS_MAX) | (heads > sizes))
        if len(wrong):
            first = int(wrong[0])
            got = f"{labels[first]} labels in a record of {sizes[first]} bytes"
            self.fail(int(starts[first]), f"an image record with at most {_LABELS_MAX} labels", got)
        several = labels > 0
        return NumberedIndex(
            ("label", "id", "image"),
            np.stack([np.where(several, starts + _IMAGE_HEAD, starts + 4), starts + 8, starts + heads]),
            np.stack([np.where(several, 4 * labels, 4), np.full(len(starts), 8), sizes - heads]),
            len(starts),
            encodings=("float32[]" if several.any() else "float32", "uint64", "image"),
        )


def _begins(data: memoryview) -> bool:
    return int.from_bytes(data[:4], "little") == MAGIC


FORMATS: Final = (
    FormatSpec(
        RecordIoFormat("recordio"),
        (".rec", ".recordio"),
        begins=_begins,
        sniff_rank=1,
        first_samples=cut_at(records_end),
    ),
    FormatSpec(RecordIoFormat("recordio-image", images=True), first_samples=cut_at(records_end)),
    FormatSpec(RecordIoFormat("recordio-raw", images=False), first_samples=cut_at(records_end)),
)
