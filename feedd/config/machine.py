"""Defaults that depend on the machine: shares of its disk and memory."""

from __future__ import annotations

import os
from pathlib import Path

from feedd.units import GIB

CACHE_SHARE = 0.5  # of the file system the cache lies on
ARENA_SHARE = 0.25  # of the memory this process may use
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


def default_cache_bytes(directory: Path) -> int:
    """Return half of the file system ``directory`` lies on, whole GiB where it is that large."""
    try:
        disk = os.statvfs(existing_parent(directory))
    except OSError:
        return GIB  # unreadable: the cache itself will say so when it opens the directory
    share = int(disk.f_blocks * disk.f_frsize * CACHE_SHARE)
    return share - share % GIB if share >= GIB else share


def default_arena_bytes() -> int:
    """Return a quarter of the memory, whole GiB where it is that large."""
    share = int(memory_bytes() * ARENA_SHARE)
    return share - share % GIB if share >= GIB else share
