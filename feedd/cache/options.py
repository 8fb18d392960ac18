"""The operator's options of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from feedd.cache.prefetch import PrefetchLimits
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where the cache lives and how large it may grow.

    Attributes:
        directory: cache directory, owned by one cache at a time; created if missing.
        size_bytes: upper limit of disk bytes, headers and block rounding included.
        free_reserve_bytes: free space the cache leaves on the file system for others.
        fill_deadline_s: longest time the fetch of one object may take.
        prefetching: bounds of the fills that no acquirer waits for yet.
        verify: when an entry's bytes are compared with their checksums. ``use``: each time the entry goes into use.
            ``boot``: at its first use after a start. ``off``: never, only the header and the length are checked.
        verified_for_s: time for which a verified entry is not verified again.
        quotas: upper limits of disk bytes by URL prefix; the longest matching prefix counts; see ``Quotas``.
        allow_network_fs: accept a directory on NFS, SMB or FUSE too. fuse-overlayfs is always accepted.
        bypass_bytes: upper limit of the memory for shards while the disk cannot be used; 0: none is used.
    """

    directory: Path
    size_bytes: int
    free_reserve_bytes: int = 256 * MIB
    fill_deadline_s: float = 1800.0
    prefetching: PrefetchLimits = field(default_factory=PrefetchLimits)
    verify: Literal["use", "boot", "off"] = "use"
    verified_for_s: float = 600.0
    quotas: Mapping[str, int] = field(default_factory=dict)
    allow_network_fs: bool = False
    bypass_bytes: int = 0

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise ValueError(f"expected size_bytes above 0, got {self.size_bytes}")
        if self.free_reserve_bytes < 0 or self.bypass_bytes < 0:
            got = f"{self.free_reserve_bytes} and {self.bypass_bytes}"
            raise ValueError(f"expected free_reserve_bytes and bypass_bytes of 0 or more, got {got}")
        if self.fill_deadline_s <= 0:
            raise ValueError(f"expected fill_deadline_s above 0, got {self.fill_deadline_s}")
        if self.verify not in {"use", "boot", "off"}:
            raise ValueError(f"expected verify of use, boot or off, got {self.verify}")
        if not self.verified_for_s >= 0:
            raise ValueError(f"expected verified_for_s of 0 or more, got {self.verified_for_s}")
