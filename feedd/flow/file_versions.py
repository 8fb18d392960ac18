"""Tells whether files have changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FileVersion = tuple[int, int, int]
"""What tells a changed or replaced file: time of change in ns, size, inode."""


def file_version(path: str | Path) -> FileVersion:
    """Return the version of a file; blocks.

    Raises:
        OSError: the file cannot be looked at.
    """
    status = Path(path).stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def file_versions(paths: Iterable[str | Path]) -> tuple[FileVersion | None, ...]:
    """Return the versions of files that belong together; None: a file cannot be looked at. Blocks."""
    return tuple(map(_version_or_none, paths))


def _version_or_none(path: str | Path) -> FileVersion | None:
    try:
        return file_version(path)
    except OSError:
        return None
