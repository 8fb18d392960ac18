"""SageMaker's recordio-protobuf: RecordIO around ``aialgs.data.Record``.

Every feature of a record is a field named by its key; SageMaker's built-in algorithms use the key ``values``. Every
label is a field named ``label_`` plus its key, as in ml-io. A dense tensor is its values, read in place: ``float32[]``,
``float64[]``, or ``varint[]`` for integers. A sparse tensor also has ``NAME.keys``, the positions of its values in the
flattened tensor, and ``NAME.shape`` if the record has it. A Bytes value is its single value. ``uid`` and ``metadata``
are text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.formats.format_spec import FormatSpec, cut_at
from feedd.formats.framing import NamedCells, field_names
from feedd.formats.protobuf import MessageReader, NotAMessage
from feedd.formats.recordio import PartsReader, records_end
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEATURES, _LABEL = 1, 2
_TEXTS: Final = {3: "uid", 4: "metadata", 5: "configuration"}
_TENSORS: Final = {2: "float32[]", 3: "float64[]", 7: "varint[]"}
_BYTES: Final = 9
_WIDTHS: Final = {"float32[]": 4, "float64[]": 8}
_PARTS: Final = {2: "keys", 3: "shape"}
_FRAME_BYTES_MAX: Final = 4096
_COMPARED_BYTES: Final = 1 << 20  # bytes per comparison; each needs eight more for its offset


class RecordIoProtobufFormat:
    """``protocols.ShardFormat`` of recordio-protobuf; stateless."""

    @property
    def name(self) -> str:
        """Name of the format: ``recordio-protobuf``."""
        return "recordio-protobuf"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the records' tensors; a key is the record's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: broken framing, split records, records that are not such messages, or tensors of different types.
        """
        return _Reader(data, url).read()


class _Reader(PartsReader, MessageReader):
    """Reads the records of one shard."""

    def __init__(self, data: memoryview, url: str) -> None:
        super().__init__(data, url)
        self._columns = NamedCells[str]()

    def read(self) -> ShardIndex:
        """Read all records; return the index."""
        starts, sizes = self.records()
        alike = np.zeros(len(starts), np.bool_)
        first: list[tuple[int, int, int]] = []
        if len(starts):
            self._read(0, int(starts[0]), int(sizes[0]))
            cells = self._columns
            first = list(zip(cells.column, cells.start, cells.size, strict=True))
            alike = self._alike(starts, sizes, first)
        for sample in np.flatnonzero(~alike).tolist():
            self._read(sample, int(starts[sample]), int(sizes[sample]))
        columns = self._columns
        places, lengths = columns.tables(self, len(columns.names), len(starts))
        for column, start, size in first:
            places[column, alike] = starts[alike] + (start - starts[0])
            lengths[column, alike] = size
        names = field_names(list(columns.names), self._url)
        return NumberedIndex(names, places, lengths, len(starts), encodings=tuple(columns.encodings))

    def _alike(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], first: list[tuple[int, int, int]]
    ) -> NDArray[np.bool_]:
        """Return bool[records]: which records equal the first in all bytes outside of values, so that offsets agree.

        Most datasets consist of such records, and reading records one by one takes ten times as long.
        """
        frame = np.ones(int(sizes[0]), np.bool_)
        for _, start, size in first:
            frame[start - int(starts[0]) :][:size] = False
        places = np.flatnonzero(frame)
        alike: NDArray[np.bool_] = sizes == sizes[0]
        if len(places) > _FRAME_BYTES_MAX:
            alike[1:] = False
            return alike
        raw = np.frombuffer(self._data, np.uint8)
        wanted = raw[starts[0] + places]
        some = max(1, _COMPARED_BYTES // max(1, len(places)))
        candidates = np.flatnonzero(alike)
        for at in range(0, len(candidates), some):
            rows = candidates[at : at + some]
            alike[rows] = (raw[starts[rows, None] + places] == wanted).all(axis=1)
        return alike

    def _read(self, sample: int, start: int, size: int) -> None:
        try:
            self._record(sample, start, start + size)
        except NotAMessage as error:
            self.fail(start, "an aialgs.data.Record", str(error))

    def _record(self, sample: int, start: int, end: int) -> None:
        seen: set[str] = set()
        for number, low, high in self.fields(start, end):
            if number in {_FEATURES, _LABEL}:
                self._entry(sample, low, high, "label_" if number == _LABEL else "", seen)
            elif number in _TEXTS:
                self._add(sample, _TEXTS[number], "text", (low, high), seen)

    def _entry(self, sample: int, start: int, end: int, prefix: str, seen: set[str]) -> None:
        """Add one entry of the map of features or labels."""
        raw, (kind, low, high) = self.entry(start, end)
        name = raw.decode("utf-8", "replace")
        if kind in _TENSORS:
            self._tensor(sample, prefix + name, _TENSORS[kind], (low, high), seen)
        elif kind == _BYTES:
            values = list(self.messages(low, high, 1))
            if len(values) != 1:
                self.fail(low, f"one value in the bytes of {name!r}", f"{len(values)} values")
            self._add(sample, prefix + name, "", values[0], seen)
        elif kind:
            raise NotAMessage(f"a value {name!r} of kind {kind}")

    def _tensor(self, sample: int, name: str, stored: str, place: tuple[int, int], seen: set[str]) -> None:
        values: dict[int, tuple[int, int]] = {1: (place[0], place[0])}
        given: set[int] = set()
        for number in (1, *_PARTS):
            for low, high in self.values(*place, number):
                if number in given:
                    self.fail(place[0], f"packed numbers in {name!r}", "several lists of them")
                given.add(number)
                values[number] = (low, high)
        width = _WIDTHS.get(stored, 1)
        low, high = values[1]
        if (high - low) % width:
            self.fail(low, f"numbers of {width} bytes in {name!r}", f"{high - low} bytes of them")
        self._add(sample, name, stored, values[1], seen)
        for number, part in _PARTS.items():
            if number in values:
                self._add(sample, f"{name}.{part}", "varint[]", values[number], seen)

    def _add(self, sample: int, name: str, stored: str, place: tuple[int, int], seen: set[str]) -> None:
        if name in seen:
            raise NotAMessage(f"two values {name!r}")
        seen.add(name)
        self._columns.add(self, sample, name, stored, place)


FORMATS: Final = (FormatSpec(RecordIoProtobufFormat(), (".pbr", ".protobuf"), first_samples=cut_at(records_end)),)
