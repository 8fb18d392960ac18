"""Copies objects out of the cache of a daemon on this machine, if it has them. Blocking file work.

An entry is a header and the object's bytes. The checksums of its blocks are verified on the way. A daemon may remove or
overwrite an entry meanwhile. The checksums then do not match, and the object is fetched. These checksums do not tell
who wrote an entry, so directories in which other users may write are not read.
"""

from __future__ import annotations

import os
from struct import iter_unpack
from typing import TYPE_CHECKING

from awscrt.checksums import crc32c

from feedd.cache import entry_layout
from feedd.cache.files import read_header
from feedd.cache.lock import check_private
from feedd.errors import CacheUnavailable
from feedd.flow.sink_file import file_pieces, write_at

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from feedd.cache.entry_layout import Header
    from feedd.values import ObjectRef


class CachedEntries:
    """The entries in cache directories.

    Args:
        directories: a directory for each daemon of the machine.

    Attributes:
        refused: why directories with entries are not used: other users may write to them.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories: list[Path] = []
        self.refused: list[CacheUnavailable] = []
        for directory in directories:
            if not os.access(directory / entry_layout.FORMAT_FOLDER, os.R_OK):
                continue
            try:
                check_private(directory)
            except CacheUnavailable as error:
                self.refused.append(error)
            else:
                self._directories.append(directory)

    def copy(self, ref: ObjectRef, to_fd: int, stop: threading.Event) -> bool:
        """Copy an object to a file, unless ``stop`` is set meanwhile.

        Returns:
            Whether the file holds the object. If not, its content is undefined.
        """
        return any(_copied(entry_layout.file_path(one, ref), ref, to_fd, stop) for one in self._directories)


def _copied(path: Path, ref: ObjectRef, to_fd: int, stop: threading.Event) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        header = read_header(fd)
        return header is not None and header.ref == ref and _blocks_copied(fd, header, to_fd, stop)
    finally:
        os.close(fd)


def _blocks_copied(fd: int, header: Header, to_fd: int, stop: threading.Event) -> bool:
    block = entry_layout.block_bytes(header.ref.size_bytes)
    at, end = 0, header.ref.size_bytes
    for (expected,) in iter_unpack("<I", header.sums):
        got, size_bytes = 0, min(block, end - at)
        try:
            for distance, piece in file_pieces(fd, header.data_at + at, size_bytes):
                got = crc32c(piece, got)
                write_at(to_fd, piece, at + distance)
        except OSError:  # a fetch into the same file reports what is wrong with it
            return False
        if got != expected or stop.is_set():
            return False
        at += size_bytes
    return True
