"""The two ways a batch reaches its client (seam ``BatchTransport``): a lease on a slot, or its bytes in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.units import MIB
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import BatchWriter, chunk_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.serve.instructions import Send
    from feedd.values import BatchReady, SlotRef

    Write = Callable[[bytes], Awaitable[None]]  # takes one serialized StreamResponse; waits for flow control


class SlotTransport:
    """Sends about a hundred bytes per batch; the client reads the slot itself."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._writer = BatchWriter()

    @property
    def name(self) -> str:
        """The metric label, ``slot``."""
        return "slot"

    async def send(self, seq: int, batch: BatchReady, slot: SlotRef) -> bool:
        """Send one lease and return True: the client now holds the slot."""
        message = pb.StreamResponse(batches=[self._writer.message(seq, batch, slot)])
        await self._write(message.SerializeToString())
        return True

    async def send_many(self, sends: Sequence[Send]) -> None:
        """Send several leases in one message; the client now holds all their slots."""
        message = pb.StreamResponse(batches=[self._writer.message(s.seq, s.batch, s.slot) for s in sends])
        await self._write(message.SerializeToString())


class InlineTransport:
    """Sends the batch's bytes in order, one chunk per message; each chunk is copied once, just before it is sent."""

    def __init__(self, write: Write, view: Callable[[SlotRef], memoryview], chunk_size_bytes: int = MIB) -> None:
        """Bind to one stream.

        Args:
            write: takes the messages.
            view: returns a slot's bytes.
            chunk_size_bytes: maximum payload of one message.
        """
        self._write = write
        self._view = view
        self._chunk_size_bytes = chunk_size_bytes
        self._writer = BatchWriter()

    @property
    def name(self) -> str:
        """The metric label, ``inline``."""
        return "inline"

    async def send(self, seq: int, batch: BatchReady, slot: SlotRef) -> bool:
        """Send head and payload and return False: the slot is free again."""
        head = pb.StreamResponse(batches=[self._writer.message(seq, batch, None)])
        await self._write(head.SerializeToString())
        data = batch.oversize if batch.oversize is not None else self._view(slot)
        assert data.nbytes >= batch.size_bytes, f"a batch of {batch.size_bytes} bytes in a slot of {data.nbytes}"
        for start in range(0, batch.size_bytes, self._chunk_size_bytes):
            end = min(start + self._chunk_size_bytes, batch.size_bytes)
            await self._write(chunk_bytes(seq, start, data[start:end]))
        return False
