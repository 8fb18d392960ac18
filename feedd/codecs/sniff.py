"""What kind of image some bytes are and how large, from the first bytes only: asked before anything is allocated."""

from __future__ import annotations

import struct
from typing import Final

from feedd.codecs import boxes, tiff
from feedd.codecs.boxes import Header
from feedd.errors import BadSample
from feedd.recipe.transform_outcomes import PIXELS_MAX

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_DEFLATE_MOST: Final = 1032
"""Bytes that one byte of deflate can stand for, at the very most."""

_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}


def is_png(data: memoryview) -> bool:
    """Whether the bytes start like a PNG."""
    return bytes(data[:8]) == _PNG


def is_jpeg(data: memoryview) -> bool:
    """Whether the bytes start like a JPEG."""
    return bytes(data[:3]) == b"\xff\xd8\xff"


def check_pixels(height: int, width: int) -> None:
    """Refuse what cannot be a training image.

    Raises:
        BadSample: no pixels, or more than PIXELS_MAX.
    """
    if height <= 0 or width <= 0 or height * width > PIXELS_MAX:
        raise BadSample(f"expected an image of 1 to {PIXELS_MAX} pixels, got {height}x{width}")


def size_of(data: memoryview) -> tuple[int, int]:
    """Return height and width; see ``header_of``."""
    return header_of(data)[:2]


def header_of(data: memoryview) -> Header:
    """Return what a PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image says of itself.

    Raises:
        BadSample: none of these (JPEGs are asked about elsewhere), cut short, or too large.
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
    elif boxes.is_jpeg2000(head):
        header = boxes.jpeg2000(data)
    elif boxes.is_avif(head):
        header = boxes.avif(data)
    else:
        kinds = "a JPEG, PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image"
        raise BadSample(f"expected {kinds}, got {len(data)} bytes {head[:12]!r}")
    check_pixels(header.height, header.width)
    return header


def _png(head: bytes, file_bytes: int) -> Header:
    width, height, depth, colour = struct.unpack(">IIBB", head[16:26])
    check_pixels(height, width)
    own = 1 if colour in {0, 3} else _PNG_CHANNELS.get(colour, 4)
    row_bytes = 1 + width * own * depth // 8
    if height * row_bytes > file_bytes * _DEFLATE_MOST:  # decoders allocate for all of it, twice, before they notice
        raise BadSample(f"expected a file that can hold {height}x{width} pixels, got {file_bytes} bytes")
    return Header(height, width, _PNG_CHANNELS.get(colour, 0), depth)


def check_chunks(data: memoryview) -> None:
    """Refuse a PNG with a chunk that goes on beyond its end: OpenCV allocates what the length says, up to 4 GB.

    Raises:
        BadSample: there is one.
    """
    at = 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 12 + size
        if at <= len(data) and bytes(data[at - 8 - size : at - 4 - size]) == b"IEND":
            return
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


def _tiff(data: memoryview) -> Header:
    found = tiff.tags(data)

    def number(tag: int, default: int) -> int:
        return found[tag].value if tag in found else default

    samples, photometric = number(tiff.SAMPLES, 1), number(tiff.PHOTOMETRIC, 1)
    if photometric in {3, 5, 6}:  # palette, ink, luma and chroma: all come out as colours
        samples = 3
    height, width = number(tiff.HEIGHT, 0), number(tiff.WIDTH, 0)
    # A decoder has one tile in memory, whatever the size of the image.
    check_pixels(number(tiff.TILE_HEIGHT, 1), number(tiff.TILE_WIDTH, 1))
    return Header(height, width, samples, number(tiff.BITS, 1))
