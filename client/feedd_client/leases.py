"""How long a batch is valid: a slot's lease lives as long as the batch's tensors.

A batch in shared memory is handed out as views. All views share one array. The array dies with the last tensor, slice,
``numpy()`` view or DLPack capsule, in whichever thread that happens. A callback without a lock records its death, and
the thread that asks for the next batch returns the slot. If no slot is free, a batch is copied.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from feedd_client.errors import BatchesHeldError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from feedd_client._wire import feedd_pb2 as pb

    Payload: TypeAlias = NDArray[np.uint8]

_log: Final = logging.getLogger("feedd_client")
COPY_BYTES: Final = 2 * 1024**3
_ADVICE: Final = "drop batches that are not needed any more, or pass a larger prefetch="


class Lease:
    """The batches of one slot: one, or a run of successive steps.

    Attributes:
        payload: their memory.
        message: the first batch's message.
        slot: the slot's number; -1: the batches came inline, and their payload belongs to this process.
        generation: of the slot.
        left: batches that are not handed out or given back.
        handed_out: the trainer has a view of the slot.
    """

    __slots__ = ("generation", "handed_out", "left", "message", "payload", "slot")

    def __init__(self, payload: Payload, message: pb.Batch, slot: int, generation: int, left: int = 1) -> None:
        self.payload = payload
        self.message = message
        self.slot = slot
        self.generation = generation
        self.left = left
        self.handed_out = False


class Arrived:
    """A received batch, or several batches of successive steps that differ in their steps only.

    Attributes:
        lease: the slot that holds them, perhaps with other batches.
        message: rows, regions and counts of each batch; the message may be of an earlier batch.
        step: the first batch's step.
        at: the first batch's first byte in the lease's payload.
        anchors: see ``session.Position``.
        count: number of batches.
    """

    __slots__ = ("anchors", "at", "count", "lease", "message", "step")

    def __init__(
        self,
        lease: Lease,
        message: pb.Batch,
        step: int,
        at: int,
        anchors: tuple[tuple[int, int], ...],
        count: int = 1,
    ) -> None:
        self.lease = lease
        self.message = message
        self.step = step
        self.at = at
        self.anchors = anchors
        self.count = count

    def take_first(self, stride: int, batch_bytes: int) -> Arrived:
        """Remove the first of several batches and return it; the next is ``stride`` steps and ``batch_bytes`` on."""
        first = Arrived(self.lease, self.message, self.step, self.at, self.anchors)
        self.step += stride
        self.at += batch_bytes
        self.count -= 1
        return first


class _Watch(weakref.ref["Payload"]):
    """A weak reference that calls back after the last view of a batch's memory has died."""

    __slots__ = ("message",)

    message: pb.Batch


class LeasedSlots:
    """The slots of one session whose batches the trainer holds. One thread uses it; batches may die in any thread.

    Attributes:
        died: watches of batches that have died. The thread that takes a watch returns its slot and calls ``forget``.
    """

    def __init__(self) -> None:
        self.died: deque[_Watch] = deque()
        self._watches: dict[int, _Watch] = {}  # by slot; a watch calls back only while a reference to it exists
        self._take_note = self.died.append  # needs no lock and no Python frame

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, lease: Lease) -> None:
        """Mark a lease's slot as taken until the last view of its payload has died."""
        watch = self._watches[lease.slot] = _Watch(lease.payload, self._take_note)
        watch.message = lease.message

    def forget(self, slot: int) -> None:
        """Drop the watch of a dead batch whose slot was returned."""
        del self._watches[slot]

    def payloads(self) -> list[Payload]:
        """Return the payloads of the batches that are still held."""
        return [payload for watch in self._watches.values() if (payload := watch()) is not None]


class PrivateCopies:
    """Private copies of batches, made because the trainer holds every slot. One object per dataset and process.

    Passes in several threads may share the object: every change of ``_live`` is a single dict operation.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._live: dict[int, tuple[object, int]] = {}  # watch id -> (watch, size in bytes of the watched copy)
        self._warned = False

    @property
    def live_bytes(self) -> int:
        """Bytes of copies that are still held."""
        return sum(size_bytes for _, size_bytes in list(self._live.values()))

    def copy(self, payload: Payload, lent_count: int, slot_count: int) -> Payload:
        """Return a private copy of a batch.

        Args:
            payload: the payload to copy.
            lent_count: batches that the trainer holds in slots.
            slot_count: number of slots.

        Raises:
            BatchesHeldError: the copy would exceed the limit.
        """
        size_bytes, held_bytes, held_count = payload.nbytes, self.live_bytes, len(self._live)
        if held_bytes + size_bytes > self._limit_bytes:
            raise BatchesHeldError(
                f"expected at most {_mib(self._limit_bytes)} of batches held beyond the {slot_count} slots of shared"
                f" memory, got {held_count + 1} with {_mib(held_bytes + size_bytes)}, plus {lent_count} in slots",
                object="copy_bytes",
                hint=f"{_ADVICE} or copy_bytes=",
            )
        # a loop holds one batch while it asks for the next
        if not self._warned and lent_count + held_count > 1:
            self._warned = True
            _log.warning(
                "the trainer holds %d batches and shared memory has %d slots: further batches are private copies,"
                " at most %s of them (copy_bytes); %s",
                lent_count + held_count,
                slot_count,
                _mib(self._limit_bytes),
                _ADVICE,
            )
        copy = payload.copy()
        self.count(copy)
        return copy

    def count(self, payload: Payload) -> None:
        """Count the payload's memory against the limit while the payload is held."""
        watch = _Watch(payload, _forgetter(self._live))
        self._live[id(watch)] = (watch, payload.nbytes)


def _forgetter(live: dict[int, tuple[object, int]]) -> Callable[[_Watch], None]:
    def forget(watch: _Watch) -> None:
        live.pop(id(watch), None)

    return forget


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.4g} MiB"
