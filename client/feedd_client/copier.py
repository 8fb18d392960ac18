"""Host to device on the copy stream: what is copied from where, and which events say that it happened."""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from feedd_client.pinning import PinnedRing, aligned, register
from feedd_client.values import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from feedd_client.shm import Mapping

_streams: Final[dict[tuple[int, int], torch.cuda.Stream]] = {}


def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return this process' one copy stream of ``device``; streams made anew leave allocator blocks behind."""
    key = (os.getpid(), device.index)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def tensors_of(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch: dicts, lists and tuples of tensors and Ragged."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Ragged):
        yield batch.values
        yield batch.offsets
        if batch.shapes is not None:
            yield batch.shapes
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            if isinstance(value, torch.Tensor | Ragged | dict):
                yield from tensors_of(value)


def map_tensors(batch: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """Return the batch with every tensor changed; what holds none is passed on as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Ragged):
        shapes = None if batch.shapes is None else change(batch.shapes)
        return Ragged(change(batch.values), change(batch.offsets), shapes)
    if isinstance(batch, dict):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, list | tuple) and any(isinstance(value, torch.Tensor | Ragged) for value in batch):
        return [map_tensors(value, change) for value in batch]
    return batch


class Copier:
    """Copies batches to one CUDA device. All calls come from one thread at a time.

    Attributes:
        register_s: time spent registering shared memory with CUDA.
    """

    def __init__(self, device: torch.device, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._device = device
        self._transforms = tuple(transforms)
        self._stream = copy_stream(device)
        self._ring = PinnedRing()
        self._seen: weakref.ref[Mapping] | None = None
        self._pinned = range(0)  # addresses of the registered arena
        self.register_s = 0.0

    def enter_thread(self) -> None:
        """Make the device current in the calling thread."""
        torch.cuda.set_device(self._device)

    def register(self, mapping: Mapping) -> None:
        """Make an arena readable by the device, once."""
        if self._seen is None or self._seen() is not mapping:
            start, began_s = mapping.address, time.perf_counter()
            with torch.cuda.device(self._device):
                registered = register(mapping)
            self._pinned = range(start, start + len(mapping)) if registered else range(0)
            self._seen = weakref.ref(mapping)
            self.register_s += time.perf_counter() - began_s

    def copy(self, batch: object, mapping: Mapping | None) -> tuple[object, torch.cuda.Event, torch.cuda.Event]:
        """Begin copying; return the device batch, the event "host memory was read" and the event "ready".

        The caller keeps ``batch`` and its memory unchanged until the first event, and makes its stream wait for
        the second before it uses the result.
        """
        if mapping is not None:
            self.register(mapping)
        # blocking: the host waits for it without spinning
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.cuda.stream(self._stream):
            bounced_bytes = sum(aligned(_size_bytes(one)) for one in tensors_of(batch) if not self._direct(one))
            if bounced_bytes:
                self._ring.begin(bounced_bytes)
            moved = map_tensors(batch, self._move)
            copied.record(self._stream)
            if bounced_bytes:
                self._ring.end(copied)
            for transform in self._transforms:
                moved = transform(moved)
            ready.record(self._stream)
        return moved, copied, ready

    def _move(self, host: torch.Tensor) -> torch.Tensor:
        if host.is_cuda:
            return host
        source = host if self._direct(host) else self._ring.stage(host)
        # same dtype, contiguous: anything else makes torch copy through a temporary; casts follow on the device
        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        return target.copy_(source, non_blocking=True)

    def _direct(self, host: torch.Tensor) -> bool:
        """Whether the device can read this memory by itself."""
        if host.is_cuda or host.numel() == 0:
            return True
        return host.is_contiguous() and (host.data_ptr() in self._pinned or host.is_pinned())


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
