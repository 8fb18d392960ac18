"""What an operator decides about the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.units import MIB

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where the cache lives and how large it may grow.

    Attributes:
        directory: owned by one cache at a time; made if missing.
        size_bytes: upper limit of disk bytes, headers and block rounding included.
        free_reserve_bytes: free space the cache leaves on the file system for others.
        fill_deadline_s: longest time one object may take to arrive.
        prefetch_fills: fills at a time for wishes nobody waits for yet.
    """

    directory: Path
    size_bytes: int
    free_reserve_bytes: int = 256 * MIB
    fill_deadline_s: float = 1800.0
    prefetch_fills: int = 4

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise ValueError(f"expected size_bytes above 0, got {self.size_bytes}")
        if self.free_reserve_bytes < 0:
            raise ValueError(f"expected free_reserve_bytes of 0 or more, got {self.free_reserve_bytes}")
        if self.fill_deadline_s <= 0:
            raise ValueError(f"expected fill_deadline_s above 0, got {self.fill_deadline_s}")
        if self.prefetch_fills < 0:
            raise ValueError(f"expected prefetch_fills of 0 or more, got {self.prefetch_fills}")
