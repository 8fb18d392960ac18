"""Headers of JPEG 2000 and AVIF: boxes within boxes, read without decoding anything."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.errors import BadSample

if TYPE_CHECKING:
    from collections.abc import Iterator

_JP2: Final = b"\0\0\0\x0cjP  \r\n\x87\n"
_CODESTREAM: Final = b"\xff\x4f\xff\x51"
_BRANDS: Final = (b"avif", b"avis")
# Orientation by quarter turns counter-clockwise, then by the axis mirrored at: none, top and bottom, left and right.
_TURNS: Final = {None: (1, 8, 3, 6), 0: (4, 5, 2, 7), 1: (2, 7, 4, 5)}
_BOXES_MAX: Final = 4096


class Header(NamedTuple):
    """What an image says of itself.

    Attributes:
        height: in pixels, as stored: orientation not applied.
        width: in pixels.
        channels: 1 grey, 3 colour, 4 colour and alpha; another number where decoding "unchanged" is refused.
        depth: bits per channel.
        orientation: of an AVIF image, as EXIF counts it; the others say it elsewhere (see ``orient``).
    """

    height: int
    width: int
    channels: int = 3
    depth: int = 8
    orientation: int = 1


def is_jpeg2000(head: bytes) -> bool:
    """Whether the first 12 bytes are of a JP2 file or of a bare codestream."""
    return head.startswith((_JP2, _CODESTREAM))


def is_avif(head: bytes) -> bool:
    """Whether the first 12 bytes are of an AVIF image."""
    return head[4:8] == b"ftyp" and head[8:12] in _BRANDS


def _boxes(data: memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, first and last + 1 byte of the content of each box; the last one may be cut short."""
    for _ in range(_BOXES_MAX):
        if start + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        content = start + 8
        if size == 1:
            if start + 16 > end:
                break
            (size,) = struct.unpack_from(">Q", data, start + 8)
            content = start + 16
        stop = end if size == 0 else start + size
        if stop < content:
            break
        yield kind, content, min(stop, end)
        start = stop
    raise BadSample(f"expected boxes one after another in {len(data)} bytes, got something else at byte {start}")


def _inside(data: memoryview, start: int, end: int, wanted: bytes) -> tuple[int, int]:
    for kind, first, last in _boxes(data, start, end):
        if kind == wanted:
            return first, last
    raise BadSample(f"expected a box {wanted.decode()!r} within {len(data)} bytes, got none")


def jpeg2000(data: memoryview) -> Header:
    """Return the header of the codestream: it, and not its wrapping, says what a decoder allocates.

    Raises:
        BadSample: cut short.
    """
    at = 0
    if bytes(data[:4]) != _CODESTREAM:
        at = _codestream_of(data)
    if bytes(data[at : at + 4]) != _CODESTREAM or at + 43 > len(data):
        raise BadSample(f"expected a JPEG 2000 codestream, got {bytes(data[at : at + 4])!r}")
    right, bottom, left, top = struct.unpack_from(">IIII", data, at + 8)
    components, depth = struct.unpack_from(">HB", data, at + 40)
    return Header(bottom - top, right - left, components, (depth & 0x7F) + 1)


def _codestream_of(data: memoryview) -> int:
    for kind, first, _ in _boxes(data, 0, len(data)):
        if kind == b"jp2c":
            return first
    raise BadSample(f"expected a JPEG 2000 codestream in {len(data)} bytes, got none")


def avif(data: memoryview) -> Header:
    """Return what the properties of the primary item say.

    Raises:
        BadSample: cut short, or without them.
    """
    try:
        return _avif(data)
    except (struct.error, IndexError) as error:
        raise BadSample(f"expected whole AVIF properties, got {len(data)} bytes: {error}") from error


def _avif(data: memoryview) -> Header:
    first, last = _inside(data, 0, len(data), b"meta")
    first += 4  # version and flags
    pitm, _ = _inside(data, first, last, b"pitm")
    (primary,) = struct.unpack_from(">I" if data[pitm] else ">H", data, pitm + 4)
    iprp = _inside(data, first, last, b"iprp")
    properties = list(_boxes(data, *_inside(data, *iprp, b"ipco")))
    size: tuple[int, int] | None = None
    channels, depth, angle, axis = 3, 8, 0, None
    for number in _associated(data, *_inside(data, *iprp, b"ipma"), primary):
        if not 0 < number <= len(properties):
            continue
        kind, at, _ = properties[number - 1]
        if kind == b"ispe":
            width, height = struct.unpack_from(">II", data, at + 4)
            size = height, width
        elif kind == b"av1C":
            flags = data[at + 2]
            depth = (12 if flags & 0x20 else 10) if flags & 0x40 else 8
            channels = 1 if flags & 0x10 else 3
        elif kind == b"irot":
            angle = data[at] & 3
        elif kind == b"imir":
            axis = data[at] & 1
    if size is None:
        raise BadSample(f"expected the size of an AVIF image, got {len(properties)} properties without it")
    if any(kind == b"auxC" and b"alpha" in bytes(data[at:end]) for kind, at, end in properties):
        channels = 4
    return Header(*size, channels, depth, _TURNS[axis][angle])


def _associated(data: memoryview, first: int, last: int, primary: int) -> list[int]:
    """Return the numbers of an item's properties, from 1."""
    wide, version = data[first + 3] & 1, data[first]
    (entries,) = struct.unpack_from(">I", data, first + 4)
    at = first + 8
    for _ in range(min(entries, _BOXES_MAX)):
        if at >= last:
            break
        (item,) = struct.unpack_from(">I" if version else ">H", data, at)
        at += 4 if version else 2
        count = data[at]
        numbers = struct.unpack_from(f">{count}H" if wide else f">{count}B", data, at + 1)
        if item == primary:
            return [number & (0x7FFF if wide else 0x7F) for number in numbers]
        at += 1 + count * (2 if wide else 1)
    return []
