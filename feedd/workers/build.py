"""Identifies the build of feedd and of its decoding libraries; workers of another build must not join."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

_INFO: Final = ".dist-info"
_LIBRARIES: Final = (
    *(
        "feedd",
        "brotli",
        "cramjam",
        "h5py",
        "isal",
        "lmdb",
        "msgspec",
        "numpy",
        "opencv_python",
        "opencv_python_headless",
    ),
    *("pillow", "pyarrow", "simplejpeg", "soundfile", "soxr", "tokenizers", "zstandard"),
)


@functools.cache
def build_digest() -> str:
    """Return a digest of feedd's files and of the versions of its decoding libraries, as this process found them.

    Files count by size and time, libraries by the names of their folders. Both take a few milliseconds; reading files,
    or asking ``importlib.metadata``, takes a hundred.
    """
    libraries = {
        Path(path).parents[1] for path in (msgspec.__file__, np.__file__) if path
    }  # the same folders for daemon and workers
    facts = [*_files(Path(__file__).parents[1]), *_versions(libraries), sys.version]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _files(folder: Path) -> list[str]:
    """Return a line for each source file: name, size and time. ``pathlib`` would take four times as long."""
    facts = []
    folders = [(str(folder), "")]
    while folders:
        path, below = folders.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                name = below + entry.name
                if entry.name.endswith(".py"):
                    stat = entry.stat()
                    facts.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append((entry.path, f"{name}/"))
    return sorted(facts)


def _versions(folders: Iterable[Path]) -> list[str]:
    found = set()
    for folder in folders:
        for name in [entry.name for entry in folder.iterdir()]:
            if name.endswith(_INFO) and name.partition("-")[0].lower().replace(".", "_") in _LIBRARIES:
                found.add(name.lower())
    return sorted(found)
