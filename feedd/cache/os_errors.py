"""Translation of the operating system's refusals into what an operator can do about them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from feedd.cache.policy import quota
from feedd.errors import CacheTooSmall, CacheUnavailable, Draining
from feedd.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from feedd.cache.entry_storage import Names
    from feedd.cache.policy.cache_index import TooLarge
    from feedd.values import ObjectRef

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HINTS = {
    errno.EACCES: "run feedd as a user that may write there, or pass another --cache-dir",
    errno.EPERM: "run feedd as a user that may write there, or pass another --cache-dir",
    errno.EROFS: "the file system is mounted read-only: remount it, or pass another --cache-dir",
    errno.ENOTDIR: "a file is in the way: remove it, or pass another --cache-dir",
    errno.EEXIST: "a file is in the way: remove it, or pass another --cache-dir",
    errno.EISDIR: "a folder is in the way: remove it, or pass another --cache-dir",
    errno.ENAMETOOLONG: "pass a shorter --cache-dir",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit on open files",
    errno.EIO: "the disk failed: see the kernel's log, and pass another --cache-dir",
}


class PlaceFull(Exception):
    """There is no room for a file; stays inside the cache, which evicts and tries again.

    Attributes:
        wanted_bytes: size of the file.
        free_bytes: what may still be taken.
        reserve_bytes: how much of that is to be left to others.
    """

    def __init__(self, wanted_bytes: int, free_bytes: int, reserve_bytes: int) -> None:
        super().__init__(wanted_bytes, free_bytes, reserve_bytes)
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.reserve_bytes = reserve_bytes


def is_full(error: OSError) -> bool:
    """Whether the disk, its inodes or our quota ran out."""
    return error.errno in _FULL


def unavailable(error: OSError, path: Path) -> CacheUnavailable:
    """Return what to raise, from ``error``, for a refused operation on ``path``."""
    reason = (error.strerror or type(error).__name__).lower()
    name = errno.errorcode.get(error.errno or 0, "")
    hint = _HINTS.get(error.errno or 0, "pass another --cache-dir")
    return CacheUnavailable(
        f"expected a usable cache directory, got {reason} ({name})", object=str(path), hint=hint, stage="cache"
    )


def unusable(error: OSError, names: Names) -> CacheUnavailable:
    """Return what to raise, from ``error``, where memory was refused for another reason than want of it."""
    reason = (error.strerror or type(error).__name__).lower()
    hint = _HINTS.get(error.errno or 0, names.free_hint)
    return CacheUnavailable(f"expected {names.space}, got {reason}", object=names.where, hint=hint, stage="cache")


def place_full(full: PlaceFull, names: Names) -> CacheUnavailable:
    """Return what to raise where even eviction left no room on the disk."""
    return CacheUnavailable(
        f"expected {format_size(full.wanted_bytes)} of free {names.space} beside a reserve of "
        f"{format_size(full.reserve_bytes)}, got {format_size(full.free_bytes)} free "
        "and nothing left to evict",
        object=names.where,
        hint=names.free_hint,
        stage="cache",
    )


def stalled(directory: Path | str, waited_s: float) -> CacheUnavailable:
    """Return what to raise where the disk does not answer at all."""
    return CacheUnavailable(
        f"expected the disk to answer, got nothing for {format_duration(waited_s)}",
        object=str(directory),
        hint="see the kernel's log for a failing disk, or pass another --cache-dir",
        stage="cache",
    )


def too_small(refs: Sequence[ObjectRef], too_large: TooLarge, names: Names) -> CacheTooSmall:
    """Return what to raise where ``refs`` could not be held together even by an empty cache."""
    if too_large.quota:
        return quota.too_small(refs, too_large.quota, too_large.needed_bytes, too_large.limit_bytes)
    return CacheTooSmall(
        f"expected {len(refs)} shards of {format_size(too_large.needed_bytes)} to fit into the cache together, "
        f"got a limit of {format_size(too_large.limit_bytes)}",
        object=refs[0].url if len(refs) == 1 else names.where,
        hint=f"{names.grow_hint} or shrink the shuffle window",
        stage="cache",
    )


def closed() -> Draining:
    """Return what to raise at whoever still wants something of a cache that is closing."""
    return Draining("expected an open cache, got one that is closing", stage="cache")
