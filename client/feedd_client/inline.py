"""Assembles a batch from chunks, for daemons on another host and for batches larger than a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd_client.errors import ProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd_client._wire import feedd_pb2 as pb

INLINE_LIMIT_BYTES: Final = 4 * 1024**3


class InlineAssembler:
    """Collects the chunks of one batch or run; refuses gaps, overlaps and surplus bytes."""

    def __init__(self, batch: pb.Batch, size_bytes: int, limit_bytes: int = INLINE_LIMIT_BYTES) -> None:
        """Allocate memory for ``batch``, which takes ``size_bytes`` with the batches that follow it in the payload.

        Raises:
            ProtocolError: it claims to be larger than ``limit_bytes``; nothing is allocated then.
        """
        if size_bytes > limit_bytes:
            raise ProtocolError(f"expected a batch of at most {limit_bytes} bytes, got {size_bytes}")
        self.batch = batch
        self._payload: NDArray[np.uint8] = np.empty(size_bytes, np.uint8)
        self._filled_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived."""
        return self._filled_bytes == self._payload.size

    @property
    def payload(self) -> NDArray[np.uint8]:
        """The batch's bytes; the caller owns the array."""
        return self._payload

    def add(self, chunk: pb.Chunk) -> None:
        """Copy the next chunk to its place.

        Raises:
            ProtocolError: the chunk belongs to another batch, or has another offset.
        """
        data = chunk.data
        end = chunk.offset + len(data)
        if chunk.seq != self.batch.seq or chunk.offset != self._filled_bytes or end > self._payload.shape[0]:
            raise ProtocolError(
                f"expected batch {self.batch.seq} to continue at byte {self._filled_bytes} of {self._payload.shape[0]},"
                f" got batch {chunk.seq} bytes [{chunk.offset}, {end})"
            )
        self._payload[chunk.offset : end] = np.frombuffer(data, np.uint8)
        self._filled_bytes = end
