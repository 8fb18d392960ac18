"""Bytes in memory as a file object."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ViewFile(io.RawIOBase):
    """Bytes in memory as a read-only file, for libraries that need a file object.

    Args:
        data: the bytes, borrowed while the file is in use.
    """

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset, which may not be negative; return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise OSError(f"expected an offset of 0 or more, got {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the current offset."""
        return self._at

    def readinto(self, target: Buffer) -> int:
        """Fill ``target`` with the next bytes; return how many there were."""
        with memoryview(target).cast("B") as view:
            part = self._data[self._at : self._at + len(view)]
            view[: len(part)] = part
            self._at += len(part)
            return len(part)
