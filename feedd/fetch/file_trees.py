"""How paths of local files are opened: anywhere, or only below certain folders and never through a link.

A daemon that several users share must not read for one user what only another may read. A path is therefore opened
folder by folder, each relative to the descriptor of the one above, so that no link is followed and no folder can be
exchanged in between.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK, opening a FIFO waits for its writer
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a folder.

    Attributes:
        path: absolute path; folders end with a slash.
        status: status of a regular file; None: a folder.
    """

    path: bytes
    status: os.stat_result | None


class FileTree(Protocol):
    """Opens local paths. Every method raises OSError."""

    def open(self, path: str) -> int:
        """Return a descriptor to read a file."""

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder."""

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``, sorted by path."""


class Anywhere:
    """Every path that this process may open; links are followed."""

    def open(self, path: str) -> int:
        """Return a descriptor to read a file."""
        return os.open(path, _READ)

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder."""
        return Path(path).stat()

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``, sorted by path."""
        with os.scandir(folder) as entries:
            found = [_found(os.fsencode(entry.path), entry, wanted, follow=True) for entry in entries]
        return sorted((one for one in found if one is not None), key=lambda one: one.path)


class Beneath:
    """Paths below certain folders. Links below these folders are not followed; the folders themselves may be links.

    Args:
        folders: absolute paths with a final slash; a path of a file, also with a slash, means that file.
    """

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders

    def open(self, path: str) -> int:
        """Return a descriptor to read a file.

        Raises:
            PermissionError: the path is not below one of the folders, or leads through a link.
        """
        return self._opened(path, _READ)

    def status(self, path: str) -> os.stat_result:
        """Return the status of a file or folder, without following a link."""
        fd = self._opened(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def scan(self, folder: str, wanted: Callable[[bytes], bool]) -> list[Found]:
        """Return the folders and regular files in a folder whose paths are ``wanted``; links are left out."""
        fd = self._opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        start = os.fsencode(folder.rstrip("/")) + b"/"
        try:
            with os.scandir(fd) as entries:
                found = [_found(start + os.fsencode(entry.name), entry, wanted, follow=False) for entry in entries]
        finally:
            os.close(fd)
        return sorted((one for one in found if one is not None), key=lambda one: one.path)

    def _opened(self, path: str, flags: int) -> int:
        wanted = path.rstrip("/") + "/"
        tops = [top for top in self._folders if wanted.startswith(top)]
        if not tops:
            raise PermissionError(errno.EACCES, "not below a folder that clients may read")
        top = max(tops, key=len)
        parts = wanted.removeprefix(top).split("/")[:-1]
        if ".." in parts:
            raise PermissionError(errno.EACCES, "clients may not use .. in paths")
        if not parts:
            return os.open(top.rstrip("/") or "/", flags)
        with _folder(top, parts[:-1]) as above, _no_links(path):
            return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=above)


@contextmanager
def _folder(top: str, parts: list[str]) -> Iterator[int]:
    """Yield the descriptor of the folder that ``parts`` lead to from ``top``."""
    fd = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, parts):
            above, fd = fd, os.open(part, _FOLDER, dir_fd=fd)
            os.close(above)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _no_links(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PermissionError(
            errno.EACCES, "links are not followed below folders that clients may read", path
        ) from error


def _found(path: bytes, entry: os.DirEntry[str], wanted: Callable[[bytes], bool], *, follow: bool) -> Found | None:
    """Return an entry of a folder; None: it is not wanted, or neither a folder nor a regular file."""
    if entry.is_dir(follow_symlinks=follow):
        return Found(path + b"/", None) if wanted(path + b"/") else None
    if not wanted(path) or not entry.is_file(follow_symlinks=follow):
        return None
    return Found(path, entry.stat(follow_symlinks=follow))
