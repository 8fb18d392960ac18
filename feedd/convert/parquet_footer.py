"""Where a Parquet file's chunks lie, read from its footer by our own hand.

pyarrow tells it, too, but ends the process where a damaged one contradicts itself. It is a struct of Thrift's
compact protocol [apache/parquet-format, parquet.thrift]: each field is a byte of type and distance to the number of the
last, then its value; a struct ends with a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Spec: TypeAlias = dict[int, "Spec"]
"""Numbers of the fields to keep, of a struct or of the structs of a list; of others there is nothing to keep."""

Struct: TypeAlias = dict[int, "Value"]
Value: TypeAlias = "int | bytes | list[Value] | Struct"

_TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13
_DEPTH_MAX: Final = 24
_LEAF: Final[Spec] = {}
_SPEC: Final[Spec] = {
    3: _LEAF,  # rows
    4: {  # row groups
        1: {  # column chunks
            1: _LEAF,  # file path
            3: {6: _LEAF, 7: _LEAF, 9: _LEAF, 11: _LEAF},
        },
        3: _LEAF,  # rows
    },
    6: _LEAF,  # created by
}
_PAGE_SPEC: Final[Spec] = {2: _LEAF, 7: {1: _LEAF}}  # bytes unpacked; of a dictionary: values
_PAGE_HEAD_BYTES_MAX: Final = 256  # a dictionary's says nothing of its values


class Broken(ValueError):
    """The bytes are no such struct."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of one column in one row group.

    Attributes:
        start: first byte in the file.
        size: bytes as they lie there.
        raw_size: bytes once they are unpacked.
        elsewhere: whether they lie in another file.
        has_dictionary: whether the first page is one.
    """

    start: int
    size: int
    raw_size: int
    elsewhere: bool
    has_dictionary: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """One row group: its rows and its chunks, one a column."""

    rows: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """What is needed of a footer."""

    rows: int
    groups: tuple[Group, ...]
    created_by: bytes


def read_footer(data: memoryview) -> Footer:
    """Read a footer, its length and magic not included.

    Raises:
        Broken: it is none.
    """
    top = _Reader(bytes(data)).struct(_SPEC, 0)
    groups = tuple(_group(_as_struct(one)) for one in _as_list(top.get(4, [])))
    created_by = top.get(6, b"")
    return Footer(_as_int(top.get(3)), groups, created_by if isinstance(created_by, bytes) else b"")


def read_dictionary(data: memoryview, chunk: Chunk) -> tuple[int, int]:
    """Return how many values the dictionary of a chunk has, and the bytes of all; (0, 0): it has none.

    Args:
        data: the file, of which the chunk is here.
        chunk: whose place was checked.
    """
    if not chunk.has_dictionary:
        return 0, 0
    try:
        page = _Reader(bytes(data[chunk.start : chunk.start + _PAGE_HEAD_BYTES_MAX])).struct(_PAGE_SPEC, 0)
        return _as_int(_as_struct(page.get(7)).get(1)), _as_int(page.get(2))
    except Broken:
        return 0, 0  # the page of something else: the library says what is wrong with it


def _group(group: Struct) -> Group:
    return Group(_as_int(group.get(3)), tuple(_chunk(_as_struct(one)) for one in _as_list(group.get(1))))


def _chunk(chunk: Struct) -> Chunk:
    told = _as_struct(chunk.get(3))
    start, dictionary = _as_int(told.get(9)), _as_int(told.get(11, 0))
    has_dictionary = 0 < dictionary < start
    if has_dictionary:
        start = dictionary
    return Chunk(start, _as_int(told.get(7)), _as_int(told.get(6)), bool(chunk.get(1)), has_dictionary)


def _as_int(value: Value | None) -> int:
    if not isinstance(value, int):
        raise Broken(f"expected a number, got {type(value).__name__}")
    return value


def _as_list(value: Value | None) -> list[Value]:
    if not isinstance(value, list):
        raise Broken(f"expected a list, got {type(value).__name__}")
    return value


def _as_struct(value: Value | None) -> Struct:
    if not isinstance(value, dict):
        raise Broken(f"expected a struct, got {type(value).__name__}")
    return value


class _Reader:
    """Values one after another; every one of a list takes a byte at least, so that nothing is larger than its bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, spec: Spec, depth: int) -> Struct:
        """Read one, keeping the fields that ``spec`` names."""
        if depth > _DEPTH_MAX:
            raise Broken("expected less depth")
        found: Struct = {}
        number = 0
        while head := self._byte():
            delta = head >> 4
            number = number + delta if delta else self._zigzag()
            value = self._value(head & 15, spec.get(number), depth, in_list=False)
            if number in spec:
                found[number] = value
        return found

    def _value(self, kind: int, spec: Spec | None, depth: int, *, in_list: bool) -> Value:
        if kind <= _I64:
            return self._number(kind, in_list=in_list)
        if kind == _STRUCT:
            return self.struct(spec or _LEAF, depth + 1)
        if kind in {_LIST, _SET}:
            return self._list(spec, depth)
        if kind == _MAP:
            return self._map(depth)
        return self._bytes({_DOUBLE: 8, _UUID: 16}.get(kind) or self._length(kind))

    def _number(self, kind: int, *, in_list: bool) -> int:
        if kind in {_TRUE, _FALSE}:
            return self._byte() == _TRUE if in_list else kind == _TRUE
        return self._byte() if kind == _BYTE else self._zigzag()

    def _list(self, spec: Spec | None, depth: int) -> Value:
        if depth > _DEPTH_MAX:
            raise Broken("expected less depth")
        head = self._byte()
        kind, count = head & 15, head >> 4
        count = self._varint() if count == 15 else count
        if count > len(self._data) - self._at:
            raise Broken(f"expected a list within its bytes, got {count} values")
        if spec is None:
            for _ in range(count):
                self._value(kind, None, depth + 1, in_list=True)
            return []
        return [self._value(kind, spec, depth + 1, in_list=True) for _ in range(count)]

    def _map(self, depth: int) -> Value:
        count = self._varint()
        kinds = self._byte() if count else 0
        if count > len(self._data) - self._at or depth > _DEPTH_MAX:
            raise Broken(f"expected a map within its bytes, got {count} entries")
        for _ in range(count):
            self._value(kinds >> 4, None, depth + 1, in_list=True)
            self._value(kinds & 15, None, depth + 1, in_list=True)
        return {}

    def _length(self, kind: int) -> int:
        if kind != _BINARY:
            raise Broken(f"expected a type of value, got {kind}")
        return self._varint()

    def _bytes(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise Broken(f"expected {size} bytes at byte {self._at}, got the end")
        value = self._data[self._at : end]
        self._at = end
        return value

    def _byte(self) -> int:
        at = self._at
        if at >= len(self._data):
            raise Broken("expected more, got the end")
        self._at = at + 1
        return self._data[at]

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise Broken("expected a number, got one without an end")
