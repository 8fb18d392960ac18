"""The copy thread of one pass, and the iterator that the trainer sees."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from feedd_client import lifetime
from feedd_client.errors import FeedError
from feedd_client.iterator import FeedIterator
from feedd_client.session import Position

if TYPE_CHECKING:
    from feedd_client.copier import BatchCopier
    from feedd_client.events import DeviceSlot
    from feedd_client.outputs import Outputs
    from feedd_client.progress import Progress

_JOIN_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class Staged:
    """One batch on its way from the copy thread to the trainer; ``over``: the end, with or without an error."""

    batch: Any = None
    slot: DeviceSlot | None = None
    position: Any = None
    error: BaseException | None = None
    over: bool = False


class CopyLane:
    """Copies one pass's batches in advance, in a thread.

    The lane refers neither to loader nor to pass, so that dropping them ends the lane. A batch needs a slot, and there
    are ``prefetch`` slots. A slot is free again once the trainer has taken its batch **and** the device has done the
    work that the trainer had queued by then. So device memory stays bounded however far the host runs ahead. A slot
    returns to the daemon once the device has read it.
    """

    def __init__(self, batches: Iterator[Any], copier: BatchCopier, prefetch: int, progress: Progress) -> None:
        self.batches = batches
        if isinstance(batches, FeedIterator):
            batches.auto_commit, batches.prefetched_max = False, prefetch
        self.staged: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self._copier = copier
        self._progress = progress
        self._positions = progress.positions(batches)
        self._fresh_slots = prefetch
        # A finalizer may put into a SimpleQueue at any moment. None: stop.
        self._free: queue.SimpleQueue[DeviceSlot | None] = queue.SimpleQueue()
        self._unread: deque[tuple[Any, DeviceSlot]] = deque()  # host batches that the device may still be reading
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="feedd-device-copy", daemon=True)
        self._thread.start()

    def taken(self, staged: Staged) -> None:
        """Record that the trainer took a batch; its slot is free after the slot's ``taken`` event."""
        if isinstance(self.batches, FeedIterator) and isinstance(staged.position, Position):
            self.batches.took(staged.position)
        self._free.put(staged.slot)

    def stop(self) -> None:
        """End the thread; staged batches are dropped."""
        self._stopped = True
        self._free.put(None)
        if threading.current_thread() is self._thread:
            # A garbage collection in this thread called stop: the thread ends at its next step.
            return
        if isinstance(self.batches, FeedIterator):
            self.batches.interrupt()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._copier.enter_thread()
            while self._copy_next():
                pass
            self._return_read()
            self.staged.put(Staged(over=True))
        except BaseException as error:  # noqa: BLE001 - the trainer sees every error
            with contextlib.suppress(Exception):  # a device that fails here has failed before; that error is raised
                self._return_read()
            self.staged.put(Staged(error=error, over=True))
        finally:
            if isinstance(self.batches, FeedIterator):
                self.batches.close()

    def _copy_next(self) -> bool:
        slot = self._next_slot()
        if slot is None or self._stopped:
            return False
        try:
            batch = next(self.batches)
        except StopIteration:
            return False
        mapping = self.batches.mapping if isinstance(self.batches, FeedIterator) else None
        number, position = self._positions()
        began_s = time.perf_counter()
        moved = self._copier.copy(batch, mapping, slot, number)
        self._unread.append((batch, slot))
        self.staged.put(Staged(moved, slot, position))
        del batch, moved
        self._return_read()
        if isinstance(self.batches, FeedIterator):
            self.batches.times.copy_s += time.perf_counter() - began_s
        return not self._stopped

    def _next_slot(self) -> DeviceSlot | None:
        if self._fresh_slots:
            self._fresh_slots -= 1
            return self._copier.new_slot()
        slot = self._free.get()
        if slot is not None:
            slot.taken.synchronize()
        return slot

    def _return_read(self) -> None:
        """Wait until the device has read the copied batches, and return their slots."""
        while self._unread:
            batch, slot = self._unread.popleft()
            slot.copied.synchronize()
            self._progress.copied(slot.copied_bytes, slot.copy_s())
            del batch
            if isinstance(self.batches, FeedIterator):
                self.batches.return_now()


class DevicePass(Iterator[Any]):
    """The iterator of one DeviceLoader pass with a copy thread."""

    def __init__(self, progress: Progress, lane: CopyLane, outputs: Outputs) -> None:
        self._progress = progress
        self._lane: CopyLane | None = lane
        self._outputs = outputs
        self._pid = os.getpid()
        lifetime.device_passes.add(self)

    def __next__(self) -> Any:  # noqa: ANN401 - the source's batch type, moved to the device
        lane = self._lane
        if lane is None:
            raise StopIteration
        if self._pid != os.getpid():
            raise FeedError("expected the process that began this pass, got a forked process", hint="call iter() again")
        began_s = time.perf_counter()
        staged = lane.staged.get()
        wait_s = time.perf_counter() - began_s
        if staged.over:
            self.close()
            if staged.error is not None:
                raise staged.error
            self._progress.finished(lane.batches)
            raise StopIteration
        assert staged.slot is not None
        batch = self._outputs.handed_over(staged.batch, staged.slot)
        lane.taken(staged)
        if isinstance(lane.batches, FeedIterator):
            lane.batches.times.took(began_s, wait_s)
        self._progress.took(staged.position, wait_s)
        return batch

    def close(self) -> None:
        """End the pass. Calling it again has no effect."""
        lane, self._lane = self._lane, None
        if lane is not None and self._pid == os.getpid():
            lane.stop()

    def __del__(self) -> None:
        if hasattr(self, "_pid") and not sys.is_finalizing():
            self.close()
