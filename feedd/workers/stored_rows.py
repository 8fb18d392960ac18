"""Finds large rows that lie in their shard as they lie in a batch. They are copied from file to file in the kernel.

Neither file is mapped for it. Of rows of 147 MB, a copy takes 0.28 CPU-seconds per GB. Through two mappings it takes
0.6 with the pages that each request maps, and unmapping takes 0.1 more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import SampleCodec
    from feedd.workers.messages import FieldMessage

LARGE_BYTES: Final = 1 << 20
"""Rows of at least so many bytes are copied here; the calls for smaller rows cost more than their page faults."""


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
