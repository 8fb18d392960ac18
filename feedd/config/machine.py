"""Defaults that depend on the machine: shares of its disk and memory."""

from __future__ import annotations

import os
from pathlib import Path

from feedd.units import GIB

CACHE_SHARE = 0.5  # of the file system the cache lies on
ARENA_SHARE = 0.25  # of the memory this process may use
MEMORY_CACHE_SHARE = 0.4  # of that memory, where the cache's directory is memory too
BYPASS_SHARE = 0.1  # of that memory, for shards while the disk cannot be used
_MOUNTS = Path("/proc/self/mounts")
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def existing_parent(path: Path) -> Path:
    """Return ``path`` or the nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or less where a control group says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def is_in_memory(directory: Path) -> bool:
    """Tell whether ``directory`` lies on a file system that takes memory."""
    place = existing_parent(directory).resolve()
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    found = Path("/"), ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(point.encode("utf-8", "surrogateescape").decode("unicode_escape"))  # a space stands as \\040
        if place.is_relative_to(mounted) and len(mounted.parts) >= len(found[0].parts):
            found = mounted, kind
    return found[1] in _MEMORY_FILE_SYSTEMS


def default_cache_bytes(directory: Path) -> int:
    """Return half of the file system ``directory`` lies on, whole GiB where it is that large.

    Where it is memory, no more than a share of what this process may use: running out of that is no full disk.
    """
    try:
        disk = os.statvfs(existing_parent(directory))
    except OSError:
        return GIB  # unreadable: the cache itself will say so when it opens the directory
    share = int(disk.f_blocks * disk.f_frsize * CACHE_SHARE)
    if is_in_memory(directory):
        share = min(share, int(memory_bytes() * MEMORY_CACHE_SHARE))
    return share - share % GIB if share >= GIB else share


def default_bypass_bytes() -> int:
    """Return 1 GiB, or a tenth of the memory where that is less."""
    return min(GIB, int(memory_bytes() * BYPASS_SHARE))


def default_arena_bytes() -> int:
    """Return a quarter of the memory, whole GiB where it is that large."""
    share = int(memory_bytes() * ARENA_SHARE)
    return share - share % GIB if share >= GIB else share
