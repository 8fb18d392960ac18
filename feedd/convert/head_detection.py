"""Which form an object needs whose name does not say it, by how it begins. Pure."""

from __future__ import annotations

from typing import Final

from feedd.convert.conversion_registry import form_for, says_no_format
from feedd.formats.suffixes import INFLATE, head_says

HEAD_BYTES: Final = 512
"""How much of an object tells it."""

_MAGIC: Final = {b"PAR1": "parquet", b"PARE": "parquet", b"ARROW1": "arrow", b"\x89HDF\r\n\x1a\n": "hdf5"}
_ZIP, _ZIP_NAME_AT, _ZIP_HEAD_BYTES = b"PK\x03\x04", 26, 30
_STREAM: Final = b"\xff\xff\xff\xff"
_ARROW_ALIGN: Final = 8


def is_unsaid(url: str) -> bool:
    """Whether an object's name says neither format nor form, so that its first bytes must."""
    return not form_for(url) and says_no_format(url)


def form_by_head(head: bytes, size_bytes: int) -> str:
    """Return the form that an object needs; empty: it can be read as it lies, or nothing tells.

    Args:
        head: its first bytes, ``HEAD_BYTES`` where it has as many.
        size_bytes: of the object.
    """
    for magic, form in _MAGIC.items():
        if head.startswith(magic):
            return form
    if head.startswith(_ZIP) and len(head) > _ZIP_HEAD_BYTES:
        name_bytes = int.from_bytes(head[_ZIP_NAME_AT : _ZIP_NAME_AT + 2], "little")
        name = head[_ZIP_HEAD_BYTES : _ZIP_HEAD_BYTES + name_bytes]
        return "npz" if name.endswith(b".npy") else ""  # NumPy's zips hold nothing else, and no others begin so
    if head.startswith(_STREAM):
        message_bytes = int.from_bytes(head[4:8], "little")
        told = 0 < message_bytes < size_bytes and not message_bytes % _ARROW_ALIGN
        return "arrow" if told else ""
    packed = head_says(head)
    return packed if packed != INFLATE else ""  # of which two bytes say too little
