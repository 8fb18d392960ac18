"""The socket files of a daemon: bound under private names, then published, so that a successor can replace them.

A rename replaces a socket in one step: who connects meanwhile meets the former daemon or its successor. gRPC unlinks
the private name when it ends, and so never the socket of a successor.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

from feedd.serve.listen import remove_stale

if TYPE_CHECKING:
    from collections.abc import Iterable
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
        self._spare_links: list[tuple[Path, Path]] = []  # a second name of a published socket, and the socket's path

    @property
    def inodes(self) -> list[int]:
        """Inodes of the bound sockets."""
        return [file.inode for file in self._files]

    def private_path(self, path: Path) -> Path:
        """Return a new name to bind for a socket that will be published at ``path``; no longer than an arena socket's.

        The name is in the same folder, because a rename cannot leave the file system.
        """
        return path.with_name(f".{secrets.token_hex(2)}{len(self._files) % 10}")

    def add(self, private: Path, path: Path) -> None:
        """Take over a socket that was bound at ``private``."""
        self._files.append(_SocketFile(private, path, private.stat().st_ino))

    def publish(self, replaceable: Iterable[int] = ()) -> None:
        """Give all sockets their public paths.

        Args:
            replaceable: inodes of the predecessor's sockets, which may be replaced while they are in use.

        Raises:
            BadConfig: another daemon answers at a path.
        """
        former = {*replaceable, *self.inodes}
        for file in self._files:
            with contextlib.suppress(FileNotFoundError):
                if file.path.stat().st_ino not in former:
                    remove_stale(file.path)
            with contextlib.suppress(FileNotFoundError):  # it is published already
                file.private.rename(file.path)

    def keep_links(self) -> None:
        """Give each published socket a second name, so that ``restore`` can undo a successor's ``publish``."""
        for file in self._files:
            spare = self.private_path(file.path)
            with contextlib.suppress(OSError):
                spare.hardlink_to(file.path)
                self._spare_links.append((spare, file.path))

    def restore(self) -> None:
        """Publish the sockets again that a successor has replaced."""
        for spare, path in self._spare_links:
            with contextlib.suppress(OSError):
                spare.rename(path)  # does nothing if both names are of one socket
                spare.unlink(missing_ok=True)
        self._spare_links.clear()

    def remove(self) -> None:
        """Unlink this daemon's sockets; a successor's sockets at the same paths are left alone."""
        for spare, _ in self._spare_links:
            spare.unlink(missing_ok=True)
        for file in self._files:
            for path in (file.private, file.path):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_ino == file.inode:
                        path.unlink()
        self._spare_links.clear()
        self._files.clear()
