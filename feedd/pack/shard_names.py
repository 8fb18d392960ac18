"""Names of the objects that a pack writes."""

from __future__ import annotations

from typing import Final

MANIFEST_NAME: Final = "_feedd_pack.json"
"""The manifest, written last: it lists every shard with its digest."""


def shard_name(number: int, extension: str) -> str:
    """Return the name of a shard, as WebDataset numbers them."""
    return f"shard-{number:06d}.{extension}"
