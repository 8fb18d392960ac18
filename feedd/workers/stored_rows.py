"""Copies large rows that lie in their shard as they lie in a batch: from file to file, inside the kernel.

Neither file is mapped for it. Of rows of 147 MB, a copy takes 0.28 CPU-seconds per GB. Through two mappings it takes
0.6 with the pages that each request maps, and unmapping takes 0.1 more.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, Self, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import SampleCodec
    from feedd.workers.messages import FieldMessage

LARGE_BYTES: Final = 1 << 20
"""Rows of at least so many bytes are copied here; the calls for smaller rows cost more than their page faults."""

_PIPE_BYTES: Final = 1 << 20
_MOVE: Final = 1  # SPLICE_F_MOVE


@runtime_checkable
class StoredCodec(Protocol):
    """A codec whose samples may hold their row as it lies in a batch."""

    def stored_at(self, head: memoryview, size_bytes: int, shape: Sequence[int]) -> int | None:
        """Return where in a sample the bytes of its row begin; None: the sample must be decoded.

        Args:
            head: the first bytes of the sample, of which ``npy_header.HEAD_BYTES_MAX`` are enough.
            size_bytes: size of the sample.
            shape: shape of the row.
        """


def has_large_rows(message: FieldMessage, codec: SampleCodec) -> bool:
    """Whether a field may have rows that are copied here, and no padding."""
    large = bool(message.size) and int(np.frombuffer(message.size, np.int64).max()) >= LARGE_BYTES
    return large and isinstance(codec, StoredCodec) and not message.pad


class RowPipe:
    """A pipe through which rows are copied from one file to another; a context manager.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self) -> None:
        self._out, self._into = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # the user's pipes may be at their limit; a smaller pipe works too
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close both ends."""
        os.close(self._out)
        os.close(self._into)

    def copy(self, source: tuple[int, int], target: tuple[int, int], size_bytes: int) -> int:
        """Copy bytes from one file to another; return how many, which is less if the source ends.

        Args:
            source: descriptor of the file, and the position of the first byte.
            target: as ``source``.
            size_bytes: number of bytes.

        Raises:
            OSError: a file cannot be read or written. The pipe may then not be used again.
        """
        (from_fd, from_at), (to_fd, to_at) = source, target
        done = moved = 0
        while done < size_bytes:
            if moved == done:
                count = os.splice(from_fd, self._into, size_bytes - done, offset_src=from_at + done, flags=_MOVE)
                if not count:
                    break
                moved += count
            done += os.splice(self._out, to_fd, moved - done, offset_dst=to_at + done, flags=_MOVE)
        return done
