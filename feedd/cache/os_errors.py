"""Translates errors of the operating system into errors that tell an operator what to do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from feedd.errors import CacheTooSmall, CacheUnavailable, Draining
from feedd.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from feedd.cache.index import TooLarge
    from feedd.cache.storage import Names
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
_MAY_PASS = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_ONE_HINT = "write smaller shards: only files of tokens and .npy files are read in spans (fetch.span_size)"


class StorageFull(Exception):
    """There is no room for a file; raised only inside the cache, which evicts and tries again.

    Attributes:
        wanted_bytes: size of the file.
        free_bytes: space that is still free.
        reserve_bytes: the part of the free space that is left to others.
    """

    def __init__(self, wanted_bytes: int, free_bytes: int, reserve_bytes: int) -> None:
        super().__init__(wanted_bytes, free_bytes, reserve_bytes)
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes
        self.reserve_bytes = reserve_bytes


def is_full(error: OSError) -> bool:
    """Whether the disk, its inodes or the user's disk quota ran out."""
    return error.errno in _FULL


def may_pass(error: CacheUnavailable) -> bool:
    """Whether a later try may open the directory: it is full, failing or not writable.

    A wrong path or another owner needs the operator.
    """
    cause = error.__cause__
    return isinstance(cause, StorageFull) or (isinstance(cause, OSError) and cause.errno in _MAY_PASS)


def unavailable(error: OSError, path: Path) -> CacheUnavailable:
    """Return the error to raise, from ``error``, for a refused operation on ``path``."""
    reason = (error.strerror or type(error).__name__).lower()
    name = errno.errorcode.get(error.errno or 0, "")
    hint = _HINTS.get(error.errno or 0, "pass another --cache-dir")
    return CacheUnavailable(
        f"the cache directory cannot be used: {reason} ({name})", object=str(path), hint=hint, stage="cache"
    )


def unusable(error: OSError, names: Names) -> CacheUnavailable:
    """Return the error to raise, from ``error``, if memory was refused for a reason other than lack of memory."""
    reason = (error.strerror or type(error).__name__).lower()
    hint = _HINTS.get(error.errno or 0, names.free_hint)
    return CacheUnavailable(f"{names.space} cannot be used: {reason}", object=names.where, hint=hint, stage="cache")


def storage_full(full: StorageFull, names: Names) -> CacheUnavailable:
    """Return the error to raise if even eviction left no room on the disk."""
    return CacheUnavailable(
        f"an entry of {format_size(full.wanted_bytes)} and a reserve of {format_size(full.reserve_bytes)} need more "
        f"{names.space} than the {format_size(full.free_bytes)} free, and nothing is left to evict",
        object=names.where,
        hint=names.free_hint,
        stage="cache",
    )


def stalled(directory: Path | str, waited_s: float) -> CacheUnavailable:
    """Return the error to raise if the disk does not answer."""
    return CacheUnavailable(
        f"the disk has not answered for {format_duration(waited_s)}",
        object=str(directory),
        hint="see the kernel's log for a failing disk, or pass another --cache-dir",
        stage="cache",
    )


def vanishing(names: Names) -> CacheUnavailable:
    """Return the error to raise if entries are gone right after they were fetched."""
    return CacheUnavailable(
        "cached shards vanish as soon as they are fetched",
        object=names.where,
        hint="find what removes files there, or pass another --cache-dir",
        stage="cache",
    )


def too_small(refs: Sequence[ObjectRef], too_large: TooLarge, names: Names) -> CacheTooSmall:
    """Return the error to raise if even an empty cache could not hold ``refs`` together."""
    if too_large.quota:
        return _quota_too_small(refs, too_large.quota, too_large.needed_bytes, too_large.limit_bytes)
    return CacheTooSmall(
        f"{_unfitting(len(refs), too_large.needed_bytes)} into the cache's limit of "
        f"{format_size(too_large.limit_bytes)}",
        object=refs[0].url if len(refs) == 1 else names.where,
        hint=f"{names.grow_hint} or {_ONE_HINT if len(refs) == 1 else 'shrink the shuffle window'}",
        stage="cache",
    )


def closed() -> Draining:
    """Return the error for callers that still use a closing cache."""
    return Draining("the cache is closing", stage="cache")


def _quota_too_small(refs: Sequence[ObjectRef], quota: str, needed_bytes: int, limit_bytes: int) -> CacheTooSmall:
    """Return the error to raise if ``refs`` can never fit together into a quota."""
    return CacheTooSmall(
        f"{_unfitting(len(refs), needed_bytes)} into the quota of {quota}, which is {format_size(limit_bytes)}",
        object=refs[0].url if len(refs) == 1 else quota,
        hint=f'raise cache.quotas."{quota}" or shrink the shuffle window',
        stage="cache",
    )


def _unfitting(shard_count: int, needed_bytes: int) -> str:
    """Return the words of an error that say which shards do not fit."""
    size = format_size(needed_bytes)
    return (
        f"1 shard of {size} does not fit" if shard_count == 1 else f"{shard_count} shards of {size} do not fit together"
    )
