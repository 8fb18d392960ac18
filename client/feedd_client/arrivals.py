"""The batches of one stream as they arrive: in order, each in a slot that is free, or whole from chunks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from feedd_client.errors import ProtocolError
from feedd_client.inline import InlineAssembler
from feedd_client.leases import Arrived, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from feedd_client._wire import feedd_pb2 as pb
    from feedd_client.leases import Payload
    from feedd_client.session import Position, Session


def anchors_of(cursor: pb.Cursor) -> tuple[tuple[int, int], ...]:
    """Return the anchors of a received cursor."""
    return (
        (cursor.anchor_window, cursor.anchor_sample),
        *((anchor.window, anchor.sample) for anchor in cursor.more_anchors),
    )


class ArrivedQueue:
    """Batches that have arrived and are not taken, in order.

    Attributes:
        count: number of batches.
    """

    def __init__(self) -> None:
        self.count = 0
        self._batches: deque[Arrived] = deque()

    def __iter__(self) -> Iterator[Arrived]:
        return iter(self._batches)

    def extend(self, arrived: Iterable[Arrived]) -> None:
        """Append batches."""
        for one in arrived:
            self._batches.append(one)
            self.count += one.count

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self.count = 0

    def rows(self, index: int) -> int:
        """Return the rows of the ``index``-th batch; there must be one."""
        for one in self._batches:
            if index < one.count:
                break
            index -= one.count
        return one.message.rows

    def take(self, may_keep: Callable[[Lease], bool], stride: int, batch_bytes: int) -> Arrived:
        """Remove the next batch and return it, with all that are alike if ``may_keep`` says so of their lease.

        Args:
            may_keep: whether the trainer can keep the memory of a lease.
            stride: steps from one batch to the next.
            batch_bytes: bytes from one batch of a run to the next.
        """
        first = self._batches[0]
        if first.count == 1 or may_keep(first.lease):
            self._batches.popleft()
        else:
            first = first.take_first(stride, batch_bytes)
        self.count -= first.count
        return first


class Arrivals:
    """Checks what the daemon says about batches, because a wrong message must not become wrong data.

    Attributes:
        ready: batches that have arrived completely, in order; those that are alike are together. The owner takes them
            out.
    """

    def __init__(self, session: Session, start: Position, stride: int) -> None:
        """Expect the step ``start``, and then every ``stride``-th step of its epoch."""
        self.ready: list[Arrived] = []
        self._session = session
        self._epoch = start.epoch
        self._step = start.step
        self._stride = stride
        self._seq = 0
        self._assembling: InlineAssembler | None = None

    @property
    def has_part(self) -> bool:
        """Whether some chunks of a batch have arrived, but not all."""
        return self._assembling is not None

    def take(self, batch: pb.Batch) -> None:
        """Take a message: a batch, or a run of batches.

        Raises:
            ProtocolError: it is not the next one, or lies outside the arena or in a slot that is not free.
        """
        cursor = batch.cursor
        if batch.seq != self._seq or cursor.epoch != self._epoch or cursor.step != self._step or self._assembling:
            raise ProtocolError(
                f"expected batch {self._seq} to be step {self._step} of epoch {self._epoch},"
                f" got batch {batch.seq}: step {cursor.step} of epoch {cursor.epoch}"
            )
        count = 1 + batch.alike + len(batch.more)
        size_bytes = self._checked_bytes(batch, count)
        self._seq += 1
        self._step += self._stride * count
        if batch.inline:
            self._assembling = InlineAssembler(batch, size_bytes)
            self._take_if_complete(self._assembling)
        else:
            self._take_slot(batch, size_bytes)

    def take_chunk(self, chunk: pb.Chunk) -> None:
        """Take a part of an inline batch.

        Raises:
            ProtocolError: no batch lacks such a part.
        """
        if self._assembling is None:
            raise ProtocolError(f"expected a batch before its chunks, got a chunk of batch {chunk.seq}")
        self._assembling.add(chunk)
        self._take_if_complete(self._assembling)

    def _checked_bytes(self, batch: pb.Batch, count: int) -> int:
        """Return the bytes of all batches of a message, from the start of the first to the end of the last."""
        run_batches, batch_bytes = self._session.run_batches, self._session.granted.batch_bytes
        if count == 1:
            return batch.size_bytes
        if count > run_batches:
            raise ProtocolError(f"expected at most {run_batches} batches in a slot, got {count}")
        largest = max(one.size_bytes for one in (batch, *batch.more))
        if largest > batch_bytes:
            raise ProtocolError(f"expected batches of at most {batch_bytes} bytes in a run, got {largest}")
        last = batch.more[-1] if batch.more else batch
        return (count - 1) * batch_bytes + last.size_bytes

    def _take_slot(self, batch: pb.Batch, size_bytes: int) -> None:
        session, slot, generation = self._session, batch.slot, batch.generation
        if session.mapping is None or not 0 <= slot < session.slot_count:
            raise ProtocolError(f"expected a slot below {session.slot_count} of an attached arena, got {slot}")
        slot_bytes = session.granted.arena.slot_bytes
        if slot in session.received or generation <= session.generations.get(slot, -1) or size_bytes > slot_bytes:
            raise ProtocolError(
                f"expected a free slot of a new generation and at most {slot_bytes} bytes,"
                f" got slot {slot} generation {generation} with {size_bytes} bytes"
            )
        place = batch.place if session.shared_slot_count else slot
        if place >= (session.shared_slot_count or session.slot_count):
            raise ProtocolError(f"expected a place below {session.shared_slot_count} of a shared arena, got {place}")
        session.generations[slot] = session.received[slot] = generation
        session.mapping.refresh(place * slot_bytes, size_bytes)  # an earlier batch here may have been written to
        self._split(session.mapping.view(place * slot_bytes, size_bytes), batch, slot, generation)

    def _take_if_complete(self, assembler: InlineAssembler) -> None:
        if assembler.complete:
            self._assembling = None
            self._split(assembler.payload, assembler.batch, -1, 0)

    def _split(self, payload: Payload, batch: pb.Batch, slot: int, generation: int) -> None:
        """Append the batches of a slot, or of an inline payload, to ``ready``."""
        more = batch.more
        lease = Lease(payload, batch, slot, generation, 1 + batch.alike + len(more))
        step, anchors, at = batch.cursor.step, anchors_of(batch.cursor), 0
        self.ready.append(Arrived(lease, batch, step, at, anchors, 1 + batch.alike))
        batch_bytes = self._session.granted.batch_bytes
        step, at = step + batch.alike * self._stride, at + batch.alike * batch_bytes
        for one in more:
            step, at = step + self._stride, at + batch_bytes
            if one.cursor.step != step:
                raise ProtocolError(f"expected step {step} as the run's next batch, got step {one.cursor.step}")
            latest = self.ready[-1]
            if _are_alike(latest.message, one):
                latest.count += 1
            else:
                self.ready.append(Arrived(lease, one, step, at, anchors_of(one.cursor)))


def _are_alike(first: pb.Batch, following: pb.Batch) -> bool:
    """Whether two successive batches of a run differ in their steps only."""
    return (
        first.size_bytes == following.size_bytes
        and first.rows == following.rows
        and first.samples == following.samples
        and first.bad_samples == following.bad_samples
        and first.filtered == following.filtered
        and first.again == following.again
        and anchors_of(first.cursor) == anchors_of(following.cursor)
        and first.regions == following.regions
    )
