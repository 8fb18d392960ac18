"""A copier without a device: it reads host memory as late as a device may, when somebody waits for the copy."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import torch

from feedd_client.containers import map_tensors, tensors_of
from feedd_client.events import DeviceSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.shm import Mapping
    from feedd_client.transforms import BatchNumber


class LateEvent:
    """Happens when somebody waits for it; what it stands for is done then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: list[Callable[[], object]] = []

    def query(self) -> bool:
        """Tell whether nothing is left to do."""
        return not self._work

    def record(self, stream: Any = None) -> None:
        """Accept a stream, as CUDA's events do."""

    def later(self, work: Callable[[], object]) -> None:
        """Do something when this is waited for."""
        self._work.append(work)

    def elapsed_time(self, end: Any) -> float:
        """Return 0."""
        return 0.0

    def synchronize(self) -> None:
        """Do it."""
        with self._lock:
            while self._work:
                self._work.pop(0)()


class LateCopier:
    """Copies to private host memory, and not before ``copied`` is waited for.

    Attributes:
        threads: names of those that copied.
        begun: batches whose copies were begun.
    """

    def __init__(self, fails_at: int | None = None) -> None:
        self.threads: set[str] = set()
        self.begun = 0
        self._fails_at = fails_at

    def enter_thread(self) -> None:
        """Take note of the thread."""
        self.threads.add(threading.current_thread().name)

    def new_slot(self) -> DeviceSlot:
        """Return a place."""
        return DeviceSlot(LateEvent(), None, LateEvent())

    def copy(self, batch: object, mapping: Mapping | None, place: DeviceSlot, at: BatchNumber) -> object:
        """Begin copying; fail where told to."""
        if self.begun == self._fails_at:
            raise RuntimeError("out of device memory")
        self.begun += 1
        moved = map_tensors(batch, torch.empty_like)
        assert isinstance(place.copied, LateEvent)
        for source, target in zip(tensors_of(batch), tensors_of(moved), strict=True):
            # by address, as a device reads: nothing is kept alive for it
            address, size_bytes = source.data_ptr(), source.numel() * source.element_size()
            place.copied.later(lambda a=address, n=size_bytes, t=target: _read(a, n, t))  # type: ignore[misc]  # bound
        return moved


def _read(address: int, size_bytes: int, target: torch.Tensor) -> None:
    if size_bytes:
        ctypes.memmove(target.data_ptr(), address, size_bytes)
