"""Cutting an object into ranges that are fetched in parallel."""

from __future__ import annotations

from feedd.values import ByteRange


def split(size_bytes: int, part_size_bytes: int) -> list[ByteRange]:
    """Return consecutive ranges of ``part_size_bytes`` (the last one shorter) that cover ``[0, size_bytes)``.

    Raises:
        ValueError: ``part_size_bytes`` is not positive.
    """
    if part_size_bytes <= 0:
        raise ValueError(f"expected a part size above 0 bytes, got {part_size_bytes}")
    return [
        ByteRange(start, min(start + part_size_bytes, size_bytes)) for start in range(0, size_bytes, part_size_bytes)
    ]
