"""The socket files of a daemon: bound under private names, then published by a rename.

gRPC unlinks the private name when it ends, so it never removes the socket of the next daemon.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING, NamedTuple

from feedd.errors import BadConfig
from feedd.serve.listen import remove_stale

if TYPE_CHECKING:
    from pathlib import Path


class _SocketFile(NamedTuple):
    """One bound socket: its private name, its public path, and its inode."""

    private: Path
    path: Path
    inode: int


class SocketFiles:
    """The sockets that one daemon bound, and their files."""

    def __init__(self) -> None:
        self._files: list[_SocketFile] = []
        self._folders: dict[Path, tuple[int, int]] = {}  # owner and mode of each folder above a socket
        self._is_published = False

    def private_path(self, path: Path) -> Path:
        """Return a new name to bind for a socket that will be published at ``path``; no longer than an arena socket's.

        The name is in the same folder, because a rename cannot leave the file system.
        """
        return path.with_name(f".{secrets.token_hex(2)}{len(self._files) % 10}")

    def add(self, private: Path, path: Path) -> None:
        """Take over a socket that was bound at ``private``."""
        self._files.append(_SocketFile(private, path, private.stat().st_ino))
        for folder in path.parents:
            found = folder.stat()
            self._folders[folder] = found.st_uid, stat.S_IMODE(found.st_mode)

    def publish(self) -> None:
        """Give all sockets their public paths.

        Raises:
            BadConfig: another daemon answers at a path.
        """
        self._is_published = True
        mine = {file.inode for file in self._files}
        for file in self._files:
            with contextlib.suppress(FileNotFoundError):
                if file.path.stat().st_ino not in mine:
                    remove_stale(file.path)
            with contextlib.suppress(FileNotFoundError):  # it is published already
                file.private.rename(file.path)

    def look(self) -> list[Path]:
        """Return the published paths at which there is no socket any more; the other sockets are marked as in use.

        Cleaners of temporary folders remove files that were not used for days.
        """
        gone = []
        for path, inode in {file.path: file.inode for file in self._files if self._is_published}.items():
            try:
                if path.stat().st_ino == inode:
                    os.utime(path)
            except (FileNotFoundError, NotADirectoryError):
                gone.append(path)
        return gone

    def make_folder(self, path: Path) -> None:
        """Make the folders above a socket's path as they were when the socket was bound.

        Raises:
            BadConfig: a folder belongs to another user now.
            OSError: a folder cannot be made.
        """
        for folder in reversed(path.parents):
            owner, mode = self._folders[folder]
            try:
                folder.mkdir(mode)
                folder.chmod(mode)  # whatever the umask is
            except FileExistsError:
                found = folder.stat()
                if found.st_uid != owner:
                    raise BadConfig(
                        f"expected the folder {folder} of user {owner}, got one of user {found.st_uid}",
                        object=str(folder),
                        stage="serve",
                    ) from None

    def drop(self, private: Path) -> None:
        """Forget a socket that was not published, and unlink it."""
        self._files = [file for file in self._files if file.private != private]
        private.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unlink this daemon's sockets; another daemon's sockets at the same paths are left alone."""
        for file in self._files:
            for path in (file.private, file.path):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if path.stat().st_ino == file.inode:
                        path.unlink()
        self._files.clear()
