"""Reads the header of an image file: kind, size, channels, depth and orientation, before any allocation.

JPEG sizes come from libjpeg-turbo (see ``codecs.jpeg``). No library reads the others: see ``docs/dev/decisions/0038``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.codecs import tiff
from feedd.errors import BadSample
from feedd.recipe.transform_outcomes import PIXELS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}
"""Channels of the decoded image by PNG colour type."""
_DEFLATE_RATIO_MAX: Final = 1032
"""Maximum number of bytes that one byte of a deflate stream can expand to."""
_JP2: Final = b"\0\0\0\x0cjP  \r\n\x87\n"
_CODESTREAM: Final = b"\xff\x4f\xff\x51"
_AVIF_BRANDS: Final = (b"avif", b"avis")
# Orientation by quarter turns counter-clockwise, then by mirror axis: none, top and bottom, left and right.
_TURNS: Final = {None: (1, 8, 3, 6), 0: (4, 5, 2, 7), 1: (2, 7, 4, 5)}
_EXIF: Final = b"Exif\0\0"
_CHUNKS_MAX: Final = 4096


class Header(NamedTuple):
    """The header of an image.

    Attributes:
        height: in pixels as stored, without orientation.
        width: in pixels as stored, without orientation.
        channels: 1 grey, 3 colour, 4 colour and alpha; mode "unchanged" refuses other numbers.
        depth: bits per channel.
        orientation: EXIF orientation of an AVIF image; for other formats see ``orientation_of``.
    """

    height: int
    width: int
    channels: int = 3
    depth: int = 8
    orientation: int = 1


def is_png(data: memoryview) -> bool:
    """Whether the bytes start like a PNG."""
    return bytes(data[:8]) == _PNG


def is_jpeg(data: memoryview) -> bool:
    """Whether the bytes start like a JPEG."""
    return bytes(data[:3]) == b"\xff\xd8\xff"


def _is_avif(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS


def check_pixels(height: int, width: int) -> None:
    """Check the number of pixels of an image.

    Raises:
        BadSample: no pixels, or more than PIXELS_MAX.
    """
    if height <= 0 or width <= 0 or height * width > PIXELS_MAX:
        raise BadSample(f"expected an image of 1 to {PIXELS_MAX} pixels, got {height}x{width}")


def header_of(data: memoryview) -> Header:
    """Return the header of a PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image.

    Raises:
        BadSample: another format (JPEG included), cut short, or too large.
    """
    head = bytes(data[:32])
    if head.startswith(_PNG) and head[12:16] == b"IHDR" and len(head) >= 26:
        header = _png(head, len(data))
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        header = _webp(head)
    elif head.startswith(b"BM") and len(head) >= 26 and int.from_bytes(head[14:18], "little") >= 40:
        width, height = struct.unpack("<ii", head[18:26])
        header = Header(abs(height), width)  # negative: rows from top to bottom
    elif tiff.is_tiff(data):
        header = _tiff(data)
    elif head.startswith((_JP2, _CODESTREAM)):
        header = _jpeg2000(data)
    elif _is_avif(head):
        header = _avif(data)
    else:
        kinds = "a JPEG, PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image"
        raise BadSample(f"expected {kinds}, got {len(data)} bytes {head[:12]!r}")
    check_pixels(header.height, header.width)
    return header


def orientation_of(data: memoryview) -> int:
    """Return the EXIF orientation of a JPEG, PNG, WebP, TIFF or AVIF, 1 to 8; 1 if there is none.

    Raises:
        BadSample: an AVIF image whose properties are cut short.
    """
    head = bytes(data[:12])
    if _is_avif(head):
        return _avif(data).orientation
    if head.startswith(b"\xff\xd8"):
        exif = _jpeg_exif(data)
    elif head.startswith(_PNG):
        exif = next((data[first:last] for kind, first, last in _png_chunks(data) if kind == b"eXIf"), None)
    elif head.startswith(b"RIFF"):
        exif = _webp_exif(data)
    else:
        exif = data if tiff.is_tiff(data) else None
    return 1 if exif is None else tiff.orientation(exif)


def _jpeg_exif(data: memoryview) -> memoryview | None:
    at = 2
    for _ in range(_CHUNKS_MAX):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker, size = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker == 0xDA:  # start of scan: pixels follow
            return None
        if marker == 0xE1 and bytes(data[at + 4 : at + 10]) == _EXIF:
            return data[at + 10 : at + 2 + size]
        at += 2 + size
    return None


def _png(head: bytes, file_bytes: int) -> Header:
    width, height, depth, colour = struct.unpack(">IIBB", head[16:26])
    check_pixels(height, width)
    stored_channels = 1 if colour in {0, 3} else _PNG_CHANNELS.get(colour, 4)
    row_bytes = 1 + width * stored_channels * depth // 8
    # Decoders allocate memory for all rows, twice, before they notice that the file is too short.
    if height * row_bytes > file_bytes * _DEFLATE_RATIO_MAX:
        raise BadSample(f"expected a file that can hold {height}x{width} pixels, got {file_bytes} bytes")
    return Header(height, width, _PNG_CHANNELS.get(colour, 0), depth)


def _png_chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, first and last + 1 byte of the content of each chunk; the last chunk may end beyond the data."""
    at = len(_PNG)
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield bytes(data[at + 4 : at + 8]), at + 8, at + 8 + size
        at += 12 + size


def check_png_chunks(data: memoryview) -> None:
    """Refuse a PNG with a chunk that ends beyond the file: OpenCV allocates the stated length, up to 4 GB.

    Raises:
        BadSample: the PNG has no complete IEND chunk.
    """
    if not any(kind == b"IEND" and last + 4 <= len(data) for kind, _, last in _png_chunks(data)):
        raise BadSample(f"expected an intact PNG, got {len(data)} bytes that end within a chunk")


def _webp(head: bytes) -> Header:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return Header(height & 0x3FFF, width & 0x3FFF)
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return Header((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
        case b"VP8X":
            width, height = int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
            return Header(height, width, 4 if head[20] & 0x10 else 3)
        case other:
            raise BadSample(f"expected a WebP image, got chunk {other!r}")


def _webp_exif(data: memoryview) -> memoryview | None:
    if bytes(data[12:16]) != b"VP8X" or len(data) < 30 or not data[20] & 0x08:
        return None
    at = 12
    for _ in range(_CHUNKS_MAX):
        if at + 8 > len(data):
            return None
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if bytes(data[at : at + 4]) == b"EXIF":
            found = data[at + 8 : at + 8 + size]
            return found[6:] if bytes(found[:6]) == _EXIF else found  # some writers keep the prefix that JPEG uses
        at += 8 + size + size % 2
    return None


def _tiff(data: memoryview) -> Header:
    found = tiff.tags(data)

    def number(tag: int, default: int) -> int:
        return found[tag].value if tag in found else default

    samples, photometric = number(tiff.SAMPLES, 1), number(tiff.PHOTOMETRIC, 1)
    if photometric in {3, 5, 6}:  # palette, CMYK and YCbCr decode to colours
        samples = 3
    height, width = number(tiff.HEIGHT, 0), number(tiff.WIDTH, 0)
    # A decoder holds one tile in memory, so tiles have the same limit as images.
    check_pixels(number(tiff.TILE_HEIGHT, 1), number(tiff.TILE_WIDTH, 1))
    return Header(height, width, samples, number(tiff.BITS, 1))


def _boxes(data: memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, first and last + 1 byte of the content of each box of a JP2 or AVIF; the last may be cut short."""
    for _ in range(_CHUNKS_MAX):
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
    raise BadSample(f"expected a box at byte {start} of an image, got other data, {len(data)} bytes in all")


def _box(data: memoryview, start: int, end: int, wanted: bytes) -> tuple[int, int]:
    """Return first and last + 1 byte of the content of the first box of a kind."""
    for kind, first, last in _boxes(data, start, end):
        if kind == wanted:
            return first, last
    raise BadSample(f"expected a box {wanted.decode()!r} in an image, got {len(data)} bytes without it")


def _jpeg2000(data: memoryview) -> Header:
    """Read the codestream's header, because decoders allocate the size that it states, not the file's."""
    at = 0 if bytes(data[:4]) == _CODESTREAM else _box(data, 0, len(data), b"jp2c")[0]
    if bytes(data[at : at + 4]) != _CODESTREAM or at + 43 > len(data):
        raise BadSample(f"expected a JPEG 2000 codestream, got {bytes(data[at : at + 4])!r}")
    right, bottom, left, top = struct.unpack_from(">IIII", data, at + 8)
    components, depth = struct.unpack_from(">HB", data, at + 40)
    return Header(bottom - top, right - left, components, (depth & 0x7F) + 1)


def _avif(data: memoryview) -> Header:
    """Read the properties of the primary item."""
    try:
        first, last = _box(data, 0, len(data), b"meta")
        first += 4  # version and flags
        pitm, _ = _box(data, first, last, b"pitm")
        (primary,) = struct.unpack_from(">I" if data[pitm] else ">H", data, pitm + 4)
        iprp = _box(data, first, last, b"iprp")
        properties = list(_boxes(data, *_box(data, *iprp, b"ipco")))
        numbers = _associated(data, *_box(data, *iprp, b"ipma"), primary)
        own = [properties[number - 1] for number in numbers if 0 < number <= len(properties)]
        header = _avif_header(data, own)
    except (struct.error, IndexError) as error:
        raise BadSample(f"expected whole AVIF properties, got {len(data)} bytes: {error}") from error
    if any(kind == b"auxC" and b"alpha" in bytes(data[at:end]) for kind, at, end in properties):
        return header._replace(channels=4)
    return header


def _avif_header(data: memoryview, properties: list[tuple[bytes, int, int]]) -> Header:
    size: tuple[int, int] | None = None
    channels, depth, angle, axis = 3, 8, 0, None
    for kind, at, _ in properties:
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
    return Header(*size, channels, depth, _TURNS[axis][angle])


def _associated(data: memoryview, first: int, last: int, primary: int) -> list[int]:
    """Return the numbers of an item's properties, counted from 1."""
    wide, version = data[first + 3] & 1, data[first]
    (entries,) = struct.unpack_from(">I", data, first + 4)
    at = first + 8
    for _ in range(min(entries, _CHUNKS_MAX)):
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
