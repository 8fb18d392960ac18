"""SageMaker's recordio-protobuf: RecordIO around ``aialgs.data.Record``.

Of a record every feature is a field by its key (the built-in algorithms call theirs ``values``), every label one by
``label_`` and its key, as ml-io names them. A dense tensor is its values where they lie: ``float32[]``, ``float64[]``,
or ``varint[]`` for integers. A sparse one has besides ``NAME.keys`` (where in the flattened tensor each value belongs),
and where the record tells it, ``NAME.shape``. A Bytes value is that value. ``uid`` and ``metadata`` are text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from feedd.decode.formats.framing import Cells, field_names, numbered
from feedd.decode.formats.protobuf import MessageReader, NotAMessage
from feedd.decode.formats.recordio import PartsReader
from feedd.values import ShardIndex

_FEATURES, _LABEL = 1, 2
_TEXTS: Final = {3: "uid", 4: "metadata", 5: "configuration"}
_TENSORS: Final = {2: "float32[]", 3: "float64[]", 7: "varint[]"}
_BYTES: Final = 9
_WIDTHS: Final = {"float32[]": 4, "float64[]": 8}
_PARTS: Final = {2: "keys", 3: "shape"}
_FIELDS_MAX: Final = 4096


@dataclass(slots=True)
class _Columns(Cells):
    names: dict[str, int] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)


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
        self._columns = _Columns()

    def read(self) -> ShardIndex:
        """Read all records."""
        starts, sizes = self.records()
        for sample, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            try:
                self._record(sample, start, start + size)
            except NotAMessage as error:
                self.fail(start, "an aialgs.data.Record", str(error))
        columns = self._columns
        tables = columns.tables(self, len(columns.names), len(starts))
        names = field_names(list(columns.names), self._url)
        return ShardIndex(names, *tables, *numbered(len(starts)), stored=tuple(columns.stored))

    def _record(self, sample: int, start: int, end: int) -> None:
        seen: set[str] = set()
        for number, low, high in self.fields(start, end):
            if number in {_FEATURES, _LABEL}:
                self._entry(sample, low, high, "label_" if number == _LABEL else "", seen)
            elif number in _TEXTS:
                self._add(sample, _TEXTS[number], "text", (low, high), seen)

    def _entry(self, sample: int, start: int, end: int, prefix: str, seen: set[str]) -> None:
        """Add one entry of the map of features, or of labels."""
        name, last = "", (0, start, start)
        for number, low, high in self.fields(start, end):
            if number == 1:
                name = bytes(self._data[low:high]).decode("utf-8", "replace")
            elif number == 2:
                for one in self.fields(low, high):
                    last = one  # which counts, as protobuf has it
        kind, low, high = last
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
        columns = self._columns
        if name in seen:
            raise NotAMessage(f"two values {name!r}")
        seen.add(name)
        column = columns.names.get(name)
        if column is None:
            if len(columns.names) == _FIELDS_MAX:
                self.fail(place[0], f"at most {_FIELDS_MAX} different fields", "one more")
            column = columns.names[name] = len(columns.names)
            columns.stored.append(stored)
        elif columns.stored[column] != stored:
            self.fail(place[0], f"{name!r} as {columns.stored[column] or 'bytes'}", stored or "bytes")
        columns.column.append(column)
        columns.sample.append(sample)
        columns.start.append(place[0])
        columns.size.append(place[1] - place[0])
