"""Orientation: looked for where a file says that it has EXIF, or in an AVIF's properties; then applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from feedd.codecs import boxes, tiff
from feedd.codecs.transforms.crop import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNKS_MAX: Final = 4096
_EXIF: Final = b"Exif\0\0"
# After rows and columns have changed places, which 5 to 8 begin with.
_UPSIDE_DOWN: Final = frozenset({3, 4, 7, 8})
_MIRRORED: Final = frozenset({2, 3, 6, 7})


def orientation(data: memoryview) -> int:
    """Return the orientation of a JPEG, PNG, WebP, TIFF or AVIF, 1 to 8 as EXIF has it; 1 where there is none.

    Raises:
        BadSample: an AVIF image whose properties are cut short.
    """
    head = bytes(data[:12])
    if boxes.is_avif(head):
        return boxes.avif(data).orientation
    if head.startswith(b"\xff\xd8"):
        exif = _in_jpeg(data)
    elif head.startswith(b"\x89PNG"):
        exif = _in_png(data)
    elif head.startswith(b"RIFF"):
        exif = _in_webp(data)
    else:
        exif = data if tiff.is_tiff(data) else None
    return 1 if exif is None else tiff.orientation(exif)


def _in_jpeg(data: memoryview) -> memoryview | None:
    at = 2
    for _ in range(_CHUNKS_MAX):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker, size = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if marker == 0xDA:  # the scan: pixels from here on
            return None
        if marker == 0xE1 and bytes(data[at + 4 : at + 10]) == _EXIF:
            return data[at + 10 : at + 2 + size]
        at += 2 + size
    return None


def _in_png(data: memoryview) -> memoryview | None:
    at = 8
    for _ in range(_CHUNKS_MAX):
        if at + 8 > len(data):
            return None
        size, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        if kind == b"eXIf":
            return data[at + 8 : at + 8 + size]
        at += 12 + size
    return None


def _in_webp(data: memoryview) -> memoryview | None:
    if bytes(data[12:16]) != b"VP8X" or len(data) < 30 or not data[20] & 0x08:
        return None
    at = 12
    for _ in range(_CHUNKS_MAX):
        if at + 8 > len(data):
            return None
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if bytes(data[at : at + 4]) == b"EXIF":
            found = data[at + 8 : at + 8 + size]
            return found[6:] if bytes(found[:6]) == _EXIF else found  # some writers keep JPEG's prefix
        at += 8 + size + size % 2
    return None


def turned(height: int, width: int, tag: int) -> tuple[int, int]:
    """Return height and width once the orientation is applied."""
    return (width, height) if tag >= 5 else (height, width)


def stored(box: Box, height: int, width: int, tag: int) -> Box:
    """Return where a part of the upright image, of ``height`` x ``width``, lies in the pixels as they are stored."""
    top = height - box.top - box.height if tag in _UPSIDE_DOWN else box.top
    left = width - box.left - box.width if tag in _MIRRORED else box.left
    return Box(left, top, box.width, box.height) if tag >= 5 else Box(top, left, box.height, box.width)


def applied(image: NDArray[Any], tag: int) -> NDArray[Any]:
    """Return a view of ``image`` (rows, columns, ...) as it is meant to be looked at."""
    if tag >= 5:
        image = image.swapaxes(0, 1)
    if tag in _UPSIDE_DOWN:
        image = image[::-1]
    return image[:, ::-1] if tag in _MIRRORED else image
