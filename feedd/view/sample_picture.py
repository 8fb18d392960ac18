"""Tells from their first bytes whether a sample's bytes may be shown as a picture. Pure.

Only formats that every browser shows are pictures, and never those that can hold scripts. Everything else is shown as a
dump of its first bytes.
"""

from __future__ import annotations

from typing import Final

DUMP_BYTES: Final = 256
_ROW: Final = 16
_STARTS: Final = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)
_RIFF: Final = b"RIFF"
_WEBP: Final = b"WEBP"
_AVIF: Final = b"ftypavif"


def picture_type(data: bytes) -> str:
    """Return the media type of a picture; empty: the bytes are shown as a dump."""
    if data[:4] == _RIFF and data[8:12] == _WEBP:
        return "image/webp"
    if data[4:12] == _AVIF:
        return "image/avif"
    return next((name for start, name in _STARTS if data.startswith(start)), "")


def dump(data: bytes) -> str:
    """Return the first bytes in hexadecimal, and as far as they are text."""
    rows = []
    for at in range(0, min(len(data), DUMP_BYTES), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:04x}  {row.hex(' '):<{3 * _ROW}} {text}")
    more = f"\n({len(data):,} bytes in all)" if len(data) > DUMP_BYTES else ""
    return "\n".join(rows) + more
