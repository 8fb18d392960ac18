"""The two ways a batch reaches its client (seam ``BatchTransport``): a lease on a slot, or its bytes in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from feedd.serve.instructions import Send
from feedd.units import MIB
from feedd.values import Produced
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import BatchWriter, chunk_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from feedd.values import BatchReady, SlotRef

    Write = Callable[[bytes], Awaitable[None]]  # takes one serialized StreamResponse; waits for flow control


class BatchTransport(Protocol):
    """Sends a ready batch to the client: as a lease on a slot, or inline in chunks."""

    @property
    def name(self) -> str:
        """Metric label: ``slot`` or ``inline``."""

    async def send(self, seq: int, batch: BatchReady, slot: SlotRef) -> bool:
        """Send one batch. True: the client now holds the slot. False: the slot is free again."""


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
        message = pb.StreamResponse(batches=[self._writer.run(s.seq, s.produced, s.produced.slot) for s in sends])
        await self._write(message.SerializeToString())


class InlineTransport:
    """Sends the batch's bytes in order, one chunk per message; each chunk is copied once, just before it is sent."""

    def __init__(
        self,
        write: Write,
        view: Callable[[SlotRef], memoryview],
        chunk_size_bytes: int = MIB,
        batch_bytes: int = 0,
    ) -> None:
        """Bind to one stream.

        Args:
            write: takes the messages.
            view: returns a slot's bytes.
            chunk_size_bytes: maximum payload of one message.
            batch_bytes: bytes from one batch of a run to the next.
        """
        self._batch_bytes = batch_bytes
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
        return await self.send_run(Send(seq, Produced(batch, slot)))

    async def send_run(self, send: Send) -> bool:
        """Send the batches of a slot in one payload, and return False: the slot is free again."""
        seq, made = send.seq, send.produced
        head = pb.StreamResponse(batches=[self._writer.run(seq, made, None)])
        await self._write(head.SerializeToString())
        data = made.batch.oversize if made.batch.oversize is not None else self._view(made.slot)
        last = made.more[-1] if made.more else made.batch
        size_bytes = (made.batch_count - 1) * self._batch_bytes + last.size_bytes
        assert data.nbytes >= size_bytes, f"batches of {size_bytes} bytes in a slot of {data.nbytes}"
        for start in range(0, size_bytes, self._chunk_size_bytes):
            end = min(start + self._chunk_size_bytes, size_bytes)
            await self._write(chunk_bytes(seq, start, data[start:end]))
        return False
