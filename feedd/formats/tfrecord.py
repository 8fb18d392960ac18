"""TFRecord: framed records. Records that are tf.train.Example become fields; others are one field, unchanged.

A record is ``u64 length, u32 masked CRC-32C of the length, data, u32 masked CRC-32C of the data`` [TensorFlow,
core/lib/io/record_writer.h]. Both checksums are verified. There is no marker to find the next record, so a wrong length
ends the shard. If only data are damaged, their sample is bad, and all other samples keep their places.

Every feature of an Example is a field: a float list in place (``float32[]``), or a packed integer list (``varint[]``).
A bytes list with a single value is that value. Unpacked lists, which TensorFlow never writes, and bytes lists with
several values are errors. A record with such an error, or with features of other types than before, is a bad sample,
unless the shard has no good one.

The context of a SequenceExample is read the same way. Each of its feature lists makes two fields. ``name`` has the
values of all steps one after another, for bytes those of all values. ``name.lengths`` has the number of values of each
step, for bytes the length of each value. A list without steps counts as missing, because its type is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_spec import FormatSpec, cut_at
from feedd.formats.framing import NamedCells, field_names, samples_max
from feedd.formats.missing_reasons import Why
from feedd.formats.protobuf import MessageReader, NotAMessage
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

DATA: Final = "data"
"""The field of records that are not Examples."""

_HEAD_BYTES: Final = 12
_FOOT_BYTES: Final = 4
_RECORD_BYTES_MAX: Final = 1 << 30
_MASK_DELTA: Final = 0xA282EAD8
_STORED: Final = {1: "", 2: "float32[]", 3: "varint[]"}  # by the list's field number in a Feature
_STEPS: Final = {1: "bytes[][]", 2: "float32[][]", 3: "varint[][]"}  # the same for the steps of a feature list
_LENGTHS: Final = "lengths[][]"


def masked_crc(data: bytes | memoryview) -> int:
    """Return TensorFlow's masked CRC-32C."""
    from awscrt import checksums  # noqa: PLC0415 - a quarter of a decode worker's start time, and rarely needed

    crc: int = checksums.crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def records_end(data: memoryview) -> int:
    """Return the end of the last whole record in a shard's first bytes; 0: there is none."""
    at = 0
    while at + _HEAD_BYTES <= len(data):
        end = at + _HEAD_BYTES + int.from_bytes(data[at : at + 8], "little") + _FOOT_BYTES
        if end > len(data):
            break
        at = end
    return at


class TfRecordFormat:
    """``protocols.ShardFormat`` of TFRecord files; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``tfrecord``."""
        return "tfrecord"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the records' features; a key is the record's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: broken framing, a length with a wrong checksum, or no readable Example.
        """
        return _Reader(data, url).read()


class _Reader(MessageReader):
    """Reads the records of one shard."""

    def __init__(self, data: memoryview, url: str) -> None:
        super().__init__(data, url)
        self._columns = NamedCells[bytes]()
        self._bad: dict[int, tuple[Why, int]] = {}  # sample -> why it is bad, and the start of its record

    def read(self) -> ShardIndex:
        """Read all records; return the index."""
        spans = list(self._records())
        if not spans:
            return self._index(0)
        first = next((sample for sample in range(len(spans)) if sample not in self._bad), None)
        if first is None or not self._is_example(*spans[first]):
            starts, ends = np.array(spans, np.int64).T
            return self._whole(starts, ends - starts)
        error: Exception | None = None
        for sample, (start, end) in enumerate(spans):
            if sample not in self._bad:
                error = self._read_example(sample, start, end) or error
        if isinstance(error, BadShard) and len(self._bad) == len(spans):
            raise error  # no record can be read, so the whole shard is of another kind
        return self._index(len(spans))

    def _is_example(self, start: int, end: int) -> bool:
        try:
            self._example(0, start, end)
        except NotAMessage:
            return False
        except BadShard:
            return True  # an Example, but an unreadable one
        finally:
            self._columns.forget(0, 0)
        return True

    def _read_example(self, sample: int, start: int, end: int) -> Exception | None:
        """Add the features of one record; return the error if that is impossible."""
        columns = self._columns
        entries, names = len(columns.column), len(columns.names)
        try:
            self._example(sample, start, end)
        except (NotAMessage, BadShard) as error:
            columns.forget(entries, names)
            self._bad[sample] = Why.RECORD, start
            return error
        return None

    def _records(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each record's data, and note damaged records."""
        data, at, total, sample, most = self._data, 0, len(self._data), 0, samples_max()
        while at < total:
            head = bytes(data[at : at + _HEAD_BYTES])
            if len(head) < _HEAD_BYTES:
                self.fail(at, f"a record's header of {_HEAD_BYTES} bytes", f"end of data after {total} bytes")
            length = int.from_bytes(head[:8], "little")
            if int.from_bytes(head[8:], "little") != masked_crc(head[:8]):
                self.fail(at, "a record's length with its checksum", f"length {length} with another checksum")
            start, end = at + _HEAD_BYTES, at + _HEAD_BYTES + length
            if length > _RECORD_BYTES_MAX:
                self.fail(at, f"a record of at most {_RECORD_BYTES_MAX} bytes", f"{length} bytes")
            if end + _FOOT_BYTES > total:
                self.fail(start, f"{length} bytes of record and their checksum", f"end of data after {total} bytes")
            if int.from_bytes(data[end : end + _FOOT_BYTES], "little") != masked_crc(data[start:end]):
                self._bad[sample] = Why.CHECKSUM, start
            yield start, end
            at = end + _FOOT_BYTES
            sample += 1
            if sample > most:
                self.check_cells(1, sample)

    # ------------------------------------------------------------------ Examples

    def _example(self, sample: int, start: int, end: int) -> None:
        """Add the features of one record."""
        seen: set[bytes] = set()
        for number, low, high in self.fields(start, end):
            if number in {1, 2}:  # an Example's features, or a SequenceExample's context and feature lists
                for entry in self.messages(low, high, 1):
                    (self._feature if number == 1 else self._steps)(sample, *entry, seen)

    def _feature(self, sample: int, start: int, end: int, seen: set[bytes]) -> None:
        """Add one entry of the map: a name and its list."""
        name, last = self.entry(start, end)
        kind = last[0]
        if not kind:
            return  # a feature without a list counts as missing
        if kind not in _STORED:
            raise NotAMessage(f"a feature {name!r} of kind {kind}")
        value = self._value(*last)
        if name in seen:
            raise NotAMessage(f"two features {name!r}")
        seen.add(name)
        if value is not None:
            self._columns.add(self, sample, name, _STORED[kind], value)

    def _steps(self, sample: int, start: int, end: int, seen: set[bytes]) -> None:
        """Add one feature list: its values, and the number of values in each step."""
        name, steps = b"", (start, start)
        for number, low, high in self.fields(start, end):
            if number == 1:
                name = bytes(self._data[low:high])
            elif number == 2:
                steps = (low, high)
        if name in seen:
            raise NotAMessage(f"two features {name!r}")
        seen.add(name)
        for first in self.messages(*steps, 1):
            kind = next((number for number, _, _ in self.fields(*first)), 0)
            if not kind:
                continue  # a step without a list
            if kind not in _STEPS:
                raise NotAMessage(f"a feature {name!r} of kind {kind}")
            self._columns.add(self, sample, name, _STEPS[kind], steps)
            self._columns.add(self, sample, name + b".lengths", _LENGTHS, steps)
            return  # the other steps are checked when they are decoded

    def _value(self, kind: int, start: int, end: int) -> tuple[int, int] | None:
        """Return the span of a list's values, which must be contiguous; None: the list is empty."""
        values = [(low, high) for _, low, high in self.fields(start, end)]
        if kind == 3 and any(low == high for low, high in values):  # each number is a separate field
            self.fail(start, "a packed list", "unpacked numbers")
        if not values:
            return None
        if len(values) > 1:
            what = "one value in a bytes list" if kind == 1 else "a packed list"
            self.fail(start, what, f"{len(values)} values")
        if kind == 2 and (values[0][1] - values[0][0]) % 4:
            self.fail(start, "floats of 4 bytes", f"{values[0][1] - values[0][0]} bytes of them")
        return values[0]

    def _index(self, samples: int) -> ShardIndex:
        columns = self._columns
        starts, sizes = columns.tables(self, len(columns.names), samples)
        reasons = self._marked(starts, sizes)
        names = field_names([name.decode("utf-8", "replace") for name in columns.names], self._url)
        encodings = tuple(columns.encodings)
        return NumberedIndex(names, starts, sizes, samples, encodings=encodings, reasons=reasons)

    def _whole(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> ShardIndex:
        """Return an index of unchanged records."""
        reasons = self._marked(starts[None], sizes[None])
        return NumberedIndex((DATA,), starts[None], sizes[None], len(starts), reasons=reasons)

    def _marked(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Mark bad samples as missing, in place; return the reasons of the index."""
        if not self._bad:
            return None
        samples = np.fromiter(self._bad, np.intp, len(self._bad))
        reasons = np.zeros(starts.shape, np.uint8)
        reasons[:, samples], starts[:, samples] = np.array(list(self._bad.values()), np.int64).T
        sizes[:, samples] = -1
        return reasons


def _begins(data: memoryview) -> bool:
    return len(data) >= _HEAD_BYTES and int.from_bytes(data[8:12], "little") == masked_crc(bytes(data[:8]))


FORMATS: Final = (
    FormatSpec(
        TfRecordFormat(), (".tfrecord", ".tfrecords"), begins=_begins, sniff_rank=2, first_samples=cut_at(records_end)
    ),
)
