"""How long a batch is valid: the lease of its slot lives with its tensors, and what finds no slot free is copied.

A batch in shared memory is handed out as views. All views share one array, so that array dies with the last tensor,
slice, ``numpy()`` view or DLPack capsule, in whichever thread that is. Its death is noted by a callback that takes no
lock; the thread that asks for the next batch returns the slot.
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
    """One batch as it arrived. ``slot`` is -1 for an inline batch, whose payload is ours."""

    __slots__ = ("generation", "message", "payload", "slot")

    def __init__(self, payload: Payload, message: pb.Batch, slot: int, generation: int) -> None:
        self.payload = payload
        self.message = message
        self.slot = slot
        self.generation = generation


class _Watch(weakref.ref["Payload"]):
    """Calls back once the memory of a batch is in nobody's hands."""

    __slots__ = ("message",)

    message: pb.Batch


class LentSlots:
    """The slots of one session whose batches the trainer holds. Used by one thread; only their ends come from any.

    Attributes:
        died: the watches of batches that nobody holds any more; whoever takes one returns its slot and forgets it.
    """

    def __init__(self) -> None:
        self.died: deque[_Watch] = deque()
        self._watches: dict[int, _Watch] = {}  # by slot; a watch calls back only while somebody keeps it
        self._take_note = self.died.append  # needs no lock, and no frame of Python

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, lease: Lease) -> None:
        """Hand out a lease: its slot is taken until the last view of its payload has died."""
        watch = self._watches[lease.slot] = _Watch(lease.payload, self._take_note)
        watch.message = lease.message

    def forget(self, slot: int) -> None:
        """The slot of a batch that died is returned."""
        del self._watches[slot]

    def payloads(self) -> list[Payload]:
        """Return the memory of the batches that are still held."""
        return [payload for watch in self._watches.values() if (payload := watch()) is not None]


class HeldCopies:
    """Private copies of batches, made because the trainer holds every slot it can. One per dataset and process.

    Passes of several threads may share it: every change of ``_live`` is one operation of a dict.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._live: dict[int, tuple[object, int]] = {}  # a watch and the size of what it watches, by the watch's id
        self._warned = False

    @property
    def live_bytes(self) -> int:
        """Bytes of copies that are in somebody's hands."""
        return sum(size_bytes for _, size_bytes in list(self._live.values()))

    def copy(self, payload: Payload, lent_count: int, slot_count: int) -> Payload:
        """Return a private copy of a batch.

        Args:
            payload: the batch.
            lent_count: batches the trainer holds in slots.
            slot_count: slots there are.

        Raises:
            BatchesHeldError: the limit would be exceeded.
        """
        size_bytes, held_bytes, held_count = payload.nbytes, self.live_bytes, len(self._live)
        if held_bytes + size_bytes > self._limit_bytes:
            raise BatchesHeldError(
                f"expected at most {_mib(self._limit_bytes)} of batches held beyond the {slot_count} slots of shared"
                f" memory, got {held_count + 1} with {_mib(held_bytes + size_bytes)}, beside {lent_count} in slots",
                object="copy_bytes",
                hint=f"{_ADVICE} or copy_bytes=",
            )
        # one is what a loop still names while it asks for the next
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
        """Count memory against the limit for as long as somebody holds it."""
        watch = _Watch(payload, _forgetter(self._live))
        self._live[id(watch)] = (watch, payload.nbytes)


def _forgetter(live: dict[int, tuple[object, int]]) -> Callable[[_Watch], None]:
    def forget(watch: _Watch) -> None:
        live.pop(id(watch), None)

    return forget


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.4g} MiB"
