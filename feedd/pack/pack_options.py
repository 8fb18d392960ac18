"""What a user asks of ``feedd pack``: everything that decides the bytes of the shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from feedd.units import MIB

Labels = Literal["auto", "folder", "none"]

SHARD_BYTES: Final = 64 * MIB
SHARD_BYTES_LEAST: Final = MIB
SHARD_BYTES_MOST: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PackOptions:
    """The options that the output depends on. All parts of one pack have the same.

    Attributes:
        source: URL of the folder or prefix with the samples.
        format: format of the shards.
        shard_bytes: wanted size of a shard.
        resize: length of the shorter side to which larger images are reduced; None: images stay as they are.
        quality: quality of JPEGs that are encoded again.
        seed: permutes the samples; None: they stay in the order of their keys.
        labels: whether the folder directly below the source is written as a class number: ``auto`` decides by the
            listing.
    """

    source: str
    format: str
    shard_bytes: int = SHARD_BYTES
    resize: int | None = None
    quality: int = 90
    seed: int | None = None
    labels: Labels = "auto"
