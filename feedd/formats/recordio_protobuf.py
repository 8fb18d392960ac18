"""SageMaker's recordio-protobuf: RecordIO around ``aialgs.data.Record``.

Of a record every feature is a field by its key (the built-in algorithms call theirs ``values``), every label one by
``label_`` and its key, as ml-io names them. A dense tensor is its values where they lie: ``float32[]``, ``float64[]``,
or ``varint[]`` for integers. A sparse one has besides ``NAME.keys`` (where in the flattened tensor each value belongs),
and where the record tells it, ``NAME.shape``. A Bytes value is that value. ``uid`` and ``metadata`` are text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.formats.format_spec import FormatSpec, cut_at
from feedd.formats.framing import NamedCells, field_names, numbered
from feedd.formats.protobuf import MessageReader, NotAMessage
from feedd.formats.recordio import PartsReader, records_end
from feedd.values import ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEATURES, _LABEL = 1, 2
_TEXTS: Final = {3: "uid", 4: "metadata", 5: "configuration"}
_TENSORS: Final = {2: "float32[]", 3: "float64[]", 7: "varint[]"}
_BYTES: Final = 9
_WIDTHS: Final = {"float32[]": 4, "float64[]": 8}
_PARTS: Final = {2: "keys", 3: "shape"}
_FRAME_BYTES_MAX: Final = 4096
_COMPARED_BYTES: Final = 1 << 20  # at a time: each takes eight more to say where it is


class RecordIoProtobufFormat:
    """``protocols.ShardFormat`` of recordio-protobuf; stateless."""

    @property
    def name(self) -> str:
        """``recordio-protobuf``."""
        return "recordio-protobuf"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return where each record's tensors lie; a key is the record's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: named in errors.

        Raises:
            BadShard: broken framing, records in several parts or that are no such messages, or tensors whose types
                differ.
        """
        return _Reader(data, url).read()


class _Reader(PartsReader, MessageReader):
    """One pass over the records of one shard."""

    def __init__(self, data: memoryview, url: str) -> None:
        super().__init__(data, url)
        self._columns = NamedCells[str]()

    def read(self) -> ShardIndex:
        """Read all records."""
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
        return ShardIndex(names, places, lengths, *numbered(len(starts)), stored=tuple(columns.stored))

    def _alike(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], first: list[tuple[int, int, int]]
    ) -> NDArray[np.bool_]:
        """Return which records have every byte in common with the first that is no value: what they hold lies alike.

        Most data sets have such only, and reading them one by one takes ten times as long.
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
        """Add one entry of the map of features, or of labels."""
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
