"""Protobuf's wire format, read in place: finds the fields of a message and decodes only what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.formats.framing import ShardReader

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH: Final = 2
"""Wire type of bytes, text, messages and packed numbers."""

_VARINT, _FIXED32, _FIXED64 = 0, 5, 1


class NotAMessage(Exception):
    """The bytes are not the expected protobuf message."""


class MessageReader(ShardReader):
    """A reader of shards whose records are protobuf messages."""

    def messages(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each field with the number ``wanted``.

        Raises:
            NotAMessage: the bytes are not a message.
        """
        for number, low, high in self.fields(start, end):
            if number == wanted:
                yield low, high

    def fields(self, start: int, end: int, *, varints: bool = False) -> Iterator[tuple[int, int, int]]:
        """Yield (number, start, end) of each field's value; a varint's span is empty unless ``varints``.

        Raises:
            NotAMessage: the bytes are not a message.
        """
        at = start
        while at < end:
            tag, at = self.varint(at, end)
            number, low, at = self._field(tag, at, end)
            yield number, low if varints or tag & 7 != _VARINT else at, at

    def values(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each value with the number ``wanted``, varints included.

        Raises:
            NotAMessage: the bytes are not a message.
        """
        for number, low, high in self.fields(start, end, varints=True):
            if number == wanted:
                yield low, high

    def entry(self, start: int, end: int) -> tuple[bytes, tuple[int, int, int]]:
        """Return an entry of a map whose value holds one of several fields: (name, (number, start, end)).

        The last field counts, as in protobuf. Number 0: the value has no field.

        Raises:
            NotAMessage: the bytes are not a message.
        """
        name, last = b"", (0, start, start)
        for number, low, high in self.fields(start, end):
            if number == 1:
                name = bytes(self._data[low:high])
            elif number == 2:
                for one in self.fields(low, high):
                    last = one
        return name, last

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a varint and its end.

        Raises:
            NotAMessage: the varint does not end.
        """
        value = shift = 0
        while at < end and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise NotAMessage("a number without an end")

    def _field(self, tag: int, at: int, end: int) -> tuple[int, int, int]:
        """Return field number, start and end of the value behind a tag."""
        wire, low = tag & 7, at
        if wire == LENGTH:
            length, low = self.varint(at, end)
            at = low + length
        elif wire == _VARINT:
            _, at = self.varint(at, end)
        elif wire in {_FIXED32, _FIXED64}:
            at += 4 if wire == _FIXED32 else 8
        else:
            raise NotAMessage(f"wire type {wire}")
        if at > end:
            raise NotAMessage("a field that ends beyond its message")
        return tag >> 3, low, at
