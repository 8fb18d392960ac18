"""Mounts: which one a path lies on, and whether a cache may lie there.

The kernel's table is read, which touches no mount and so never hangs. If a server loses a mapped file, every process
that reads the mapping is killed.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

_TABLE: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_POINT: Final = 4  # field of a line of the table
_LOCAL: Final = frozenset(
    {
        *("tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay"),
        "fuse.fuse-overlayfs",  # the root of a rootless container, on the host's disk
    }
)
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse"})
WHY: Final = "if the server loses a cached file, every process that reads the file is killed (SIGBUS)"
HINT: Final = "put the cache on a local disk or tmpfs, or set cache.allow_network_fs = true to take that risk"


class FileSystem(enum.Enum):
    """Where a file system keeps its bytes, which decides whether a cache may use it."""

    LOCAL = "local"
    NETWORK = "network"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system, as the kernel's table names it.

    Attributes:
        point: absolute path with a final slash.
        kind: type of the file system, such as ``ext4``.
    """

    point: str
    kind: str


def read_mounts() -> list[Mount]:
    """Return all mounts, the latest last.

    Raises:
        OSError: there is no table.
    """
    return parse_mounts(_TABLE.read_text("utf-8", "surrogateescape").splitlines())


def parse_mounts(lines: Iterable[str]) -> list[Mount]:
    """Return the mounts that lines of a mountinfo file name; lines of another form are left out."""
    found = []
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if dash and len(fields) > _POINT:
            point = unescaped(fields[_POINT])
            found.append(Mount(f"{point.rstrip('/')}/", after.split(" ", 1)[0]))
    return found


def unescaped(path: str) -> str:
    r"""Return a path of the kernel's table, where a space is written \040."""
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), path)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that an absolute path lies on, by its text alone; None: no mount is above it.

    The innermost mount counts, and of several at one point the last, which hides the others.
    """
    within = f"{path.rstrip('/')}/"
    found = None
    for mount in mounts:
        if within.startswith(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def kind_of(directory: Path) -> str:
    """Return the type of the mount that ``directory`` lies on, or will lie on; empty if unknown. Blocking."""
    try:
        mount = mount_of(str(directory.resolve()), read_mounts())
    except OSError:
        return ""
    return "" if mount is None else mount.kind


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
