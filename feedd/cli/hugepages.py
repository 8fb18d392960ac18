"""Checks whether a directory's files get huge pages, on which the cost of a cache in memory depends."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_MODES = ("always", "within_size")


def lacks_huge_pages(directory: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether ``directory`` is on a tmpfs without huge pages.

    Raises:
        OSError: the directory or the table of mounts cannot be read.
    """
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, filesystem = line.partition(" - ")
        if mount.split(" ")[2:3] == [wanted]:
            kind, _, options = filesystem.split(" ", 2)
            found = re.search(r"(?:^|,)huge=(\w+)", options)
            return kind == "tmpfs" and (found is None or found[1] not in _MODES)
    return False
