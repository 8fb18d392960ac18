"""What kind of image some bytes are and how large, from the first bytes only: asked before anything is allocated."""

from __future__ import annotations

import struct
from typing import Final

from feedd.errors import BadSample

PIXELS_MAX: Final = 1 << 27
"""Larger images are refused: 400 MB decoded is a decompression bomb or a mistake."""


def is_jpeg(data: memoryview) -> bool:
    """Whether the bytes start like a JPEG."""
    return bytes(data[:3]) == b"\xff\xd8\xff"


def check_pixels(height: int, width: int) -> None:
    """Refuse what cannot be a training image.

    Raises:
        BadSample: no pixels, or more than PIXELS_MAX.
    """
    if not 0 < height * width <= PIXELS_MAX:
        raise BadSample(f"expected an image of 1 to {PIXELS_MAX} pixels, got {height}x{width}")


def size_of(data: memoryview) -> tuple[int, int]:
    """Return height and width of a PNG, WebP or BMP image.

    Raises:
        BadSample: none of these (JPEGs are asked about elsewhere), cut short, or too large.
    """
    head = bytes(data[:32])
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR" and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        height, width = _webp(head)
    elif head.startswith(b"BM") and len(head) >= 26 and int.from_bytes(head[14:18], "little") >= 40:
        width, height = struct.unpack("<ii", head[18:26])
        height = abs(height)  # negative: rows from top to bottom
    else:
        raise BadSample(f"expected a JPEG, PNG, WebP or BMP image, got {len(data)} bytes {head[:12]!r}")
    check_pixels(height, width)
    return height, width


def _webp(head: bytes) -> tuple[int, int]:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return height & 0x3FFF, width & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[27:30], "little") + 1, int.from_bytes(head[24:27], "little") + 1
        case other:
            raise BadSample(f"expected a WebP image, got chunk {other!r}")
