"""Reads the first directory of a TIFF, which EXIF uses too. Reads only a few dozen bytes, wherever they lie."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.errors import BadSample

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH: Final = 256
HEIGHT: Final = 257
BITS: Final = 258
PHOTOMETRIC: Final = 262
ORIENTATION: Final = 274
SAMPLES: Final = 277
TILE_WIDTH: Final = 322
TILE_HEIGHT: Final = 323
EXTRA_SAMPLES: Final = 338

_ENTRIES_MAX: Final = 4096
_SIZES: Final = {1: "B", 3: "H", 4: "I", 16: "Q"}
"""Struct letter by TIFF type: BYTE, SHORT, LONG, LONG8. Wanted tags have only these types."""
_KINDS: Final = {b"II*\0": ("<", False), b"MM\0*": (">", False), b"II+\0": ("<", True), b"MM\0+": (">", True)}


class Entry(NamedTuple):
    """The first value of a tag, its offset in the bytes, and its ``struct`` format."""

    value: int
    at: int
    struct_format: str


def is_tiff(data: memoryview) -> bool:
    """Whether the bytes start like a TIFF or a BigTIFF."""
    return bytes(data[:4]) in _KINDS


def tags(data: memoryview) -> Mapping[int, Entry]:
    """Return the numbers of the first directory, by tag; for a list, its first number.

    Raises:
        BadSample: not a TIFF, or cut short.
    """
    kind = _KINDS.get(bytes(data[:4]))
    if kind is None:
        raise BadSample(f"expected a TIFF, got {bytes(data[:4])!r}")
    order, big = kind
    try:
        return _directory(data, order, big=big)
    except struct.error as error:
        raise BadSample(f"expected a whole TIFF directory, got {len(data)} bytes: {error}") from error


def _directory(data: memoryview, order: str, *, big: bool) -> dict[int, Entry]:
    offset, count, head, entry_bytes = ("Q", "Q", "HHQ", 20) if big else ("I", "H", "HHI", 12)
    (at,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    (entries,) = _unpack(order + count, data, at)
    if entries > _ENTRIES_MAX:
        raise BadSample(f"expected at most {_ENTRIES_MAX} entries in a TIFF directory, got {entries}")
    first = at + struct.calcsize(order + count)
    inline_bytes = 8 if big else 4
    found: dict[int, Entry] = {}
    for place in range(first, first + entries * entry_bytes, entry_bytes):
        tag, kind, value_count = _unpack(order + head, data, place)
        letter = _SIZES.get(kind)
        if letter is None or not value_count:
            continue
        value_at = place + entry_bytes - inline_bytes
        if struct.calcsize(letter) * value_count > inline_bytes:
            (value_at,) = _unpack(order + offset, data, value_at)
            if value_at + struct.calcsize(letter) > len(data):
                continue  # perhaps a tag that feedd does not read
        found[tag] = Entry(_unpack(order + letter, data, value_at)[0], value_at, order + letter)
    return found


def _unpack(form: str, data: memoryview, at: int) -> tuple[int, ...]:
    if at + struct.calcsize(form) > len(data):
        raise struct.error(f"nothing at byte {at}")
    return struct.unpack_from(form, data, at)


def orientation(data: memoryview) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is missing or invalid."""
    try:
        value = tags(data)[ORIENTATION].value
    except (BadSample, KeyError):
        return 1
    return value if 1 <= value <= 8 else 1


def without_orientation(data: memoryview) -> bytes | memoryview:
    """Return a TIFF whose pixels decode as they are stored.

    Libtiff turns images upright and multiplies colours with alpha by default. A copy of the file states that both are
    already done.
    """
    copy: bytearray | None = None
    found = tags(data)
    for tag in (ORIENTATION, EXTRA_SAMPLES):
        entry = found.get(tag)
        if entry is not None and entry.value > 1:
            copy = copy or bytearray(data)
            struct.pack_into(entry.struct_format, copy, entry.at, 1)
    return data if copy is None else bytes(copy)
