"""The kind of file system a directory lies on.

If a server loses a mapped file, every process that reads the mapping is killed.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Final

from feedd.errors import CacheUnavailable

_MOUNTS: Final = Path("/proc/self/mountinfo")
_LOCAL: Final = frozenset(
    {
        *("tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay"),
        "fuse.fuse-overlayfs",  # the root of a rootless container, on the host's disk
    }
)
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse"})
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_KIND_AFTER_DASH: Final = 1
_MOUNT_POINT: Final = 4
WHY: Final = "if the server loses a cached file, every process that reads the file is killed (SIGBUS)"
HINT: Final = "put the cache on a local disk or tmpfs, or set cache.allow_network_fs = true to take that risk"


class FileSystem(enum.Enum):
    """What a cache can rely on in a file system."""

    LOCAL = "local"
    NETWORK = "network"
    UNKNOWN = "unknown"


def kind_of(directory: Path) -> str:
    """Return the type of the mount that ``directory`` lies on, or will lie on; empty if unknown. Blocking."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
        path = directory.resolve()
    except OSError:
        return ""
    return kind_in(lines, path)


def kind_in(mounts: list[str], path: Path) -> str:
    """Return the mount type of ``path`` from the lines of a mountinfo file; empty: no line is its mount."""
    kind, depth = "", 0
    for line in mounts:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) <= _MOUNT_POINT:
            continue
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[_MOUNT_POINT]))
        if path.is_relative_to(point) and len(point.parts) >= depth:  # a later mount hides an earlier mount
            kind, depth = after.split(" ", _KIND_AFTER_DASH)[0], len(point.parts)
    return kind


def judge(kind: str) -> FileSystem:
    """Classify a type of file system."""
    if kind in _LOCAL:
        return FileSystem.LOCAL
    return FileSystem.NETWORK if kind in _NETWORK or kind.startswith("fuse.") else FileSystem.UNKNOWN


def refuse_network(directory: Path) -> None:
    """Refuse a directory that lies on a network file system. Blocking.

    Raises:
        CacheUnavailable: the directory lies on a network file system.
    """
    kind = kind_of(directory)
    if judge(kind) is FileSystem.NETWORK:
        raise CacheUnavailable(
            f"expected a cache directory on a local file system, got {kind}: {WHY}",
            object=str(directory),
            hint=HINT,
            stage="cache",
        )
