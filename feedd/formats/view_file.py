"""Bytes in memory as a file, for libraries that want one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ViewFile(io.RawIOBase):
    """Bytes as a file, for libraries that want one.

    Args:
        data: borrowed as long as the file is in use.
    """

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; not before the start."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise OSError(f"expected a place in the file, got {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, target: Buffer) -> int:
        """Fill ``target`` as far as there are bytes."""
        with memoryview(target).cast("B") as view:
            part = self._data[self._at : self._at + len(view)]
            view[: len(part)] = part
            self._at += len(part)
            return len(part)
