"""Copies from host to device on the copy stream, and the CUDA events that mark their completion."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping as Fields
from typing import TYPE_CHECKING, Final, Protocol

import torch

from feedd_client import capture
from feedd_client.containers import check, map_leaves, tensors_of
from feedd_client.errors import BadOptionError
from feedd_client.events import DeviceSlot
from feedd_client.pinning import PinnedBuffers, aligned, register

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from feedd_client.containers import Movable
    from feedd_client.shm import Mapping
    from feedd_client.transforms import BatchNumber, Generators, Pipeline

_streams: Final[dict[tuple[int, int], torch.cuda.Stream]] = {}


class BatchCopier(Protocol):
    """Copies batches to a device; ``Copier`` is the CUDA implementation."""

    def enter_thread(self) -> None:
        """Prepare the calling thread, which will make all copies."""

    def new_slot(self) -> DeviceSlot:
        """Return a new slot with its own events."""

    def copy(self, batch: object, mapping: Mapping | None, slot: DeviceSlot, at: BatchNumber) -> object:
        """Start the copy and return the device batch.

        The caller keeps ``batch`` and its memory unchanged until ``slot.copied``. The caller's stream waits for
        ``slot.ready`` before using the result. If this method raises, nothing reads the host memory any more.
        """


def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return this process's only copy stream of ``device``; new streams would leave allocator blocks behind."""
    key = (os.getpid(), device.index)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def check_fields(batch: object, names: Collection[str]) -> None:
    """Check that a batch has the fields that ``on_host`` names.

    Raises:
        BadOptionError: a field is missing.
    """
    has = list(batch) if isinstance(batch, Fields) else type(batch).__name__
    for name in names:
        if not isinstance(batch, Fields) or name not in batch:
            raise BadOptionError(f"expected a field {name!r} in each batch, got {has}", object="on_host")


class Copier:
    """Copies the batches of one pass to one CUDA device. All calls come from one thread."""

    def __init__(
        self,
        device: torch.device,
        pipeline: Pipeline,
        generators: Generators,
        on_host: tuple[str, ...] = (),
        registered: Callable[[float], None] = lambda _took_s: None,
    ) -> None:
        """Set up the copy stream and the ring of pinned buffers.

        Args:
            device: CUDA device, with an index.
            pipeline: transforms to run on each batch after its copy.
            generators: random generators for the transforms.
            on_host: fields that stay on the CPU.
            registered: called with the seconds that registering shared memory took.
        """
        self._device = device
        self._pipeline = pipeline
        self._generators = generators
        self._on_host = on_host
        self._registered = registered
        self._stream = copy_stream(device)
        self._buffers = PinnedBuffers()
        self._seen: weakref.ref[Mapping] | None = None
        self._pinned = range(0)  # addresses of the registered arena

    def enter_thread(self) -> None:
        """Make the device current in the calling thread, without gradients and with one CPU thread."""
        torch.cuda.set_device(self._device)
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        capture.relax()

    def new_slot(self) -> DeviceSlot:
        """Return a new slot. The host waits for its ``copied`` and ``taken`` events without spinning."""
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        taken = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return DeviceSlot(copied, ready, taken)

    def register(self, mapping: Mapping | None) -> None:
        """Make an arena readable by the device, once per arena; None: batches travel inline."""
        if mapping is None:
            self._seen, self._pinned = None, range(0)
        elif self._seen is None or self._seen() is not mapping:
            start, began_s = mapping.address, time.perf_counter()
            ok = register(mapping, self._device)
            self._pinned = range(start, start + len(mapping)) if ok else range(0)
            self._seen = weakref.ref(mapping)
            self._registered(time.perf_counter() - began_s)

    @property
    def reads_slots(self) -> bool:
        """Whether the device reads the arena directly."""
        return bool(self._pinned)

    def copy(self, batch: object, mapping: Mapping | None, slot: DeviceSlot, at: BatchNumber) -> object:
        """Start the copy and return the device batch (see ``BatchCopier``)."""
        self.register(mapping)
        check_fields(batch, self._on_host)
        with torch.cuda.stream(self._stream):
            try:
                bounced_bytes = sum(aligned(_size_bytes(one)) for one in self._to_move(batch) if not self._direct(one))
                if bounced_bytes:
                    self._buffers.begin(bounced_bytes)
                moved = map_leaves(batch, self._move_tensor, self._move_object, self._on_host)
                slot.copied.record(self._stream)
                if bounced_bytes:
                    self._buffers.end(slot.copied)
                if self._pipeline:
                    context = self._generators.context(at, channels_last=self._pipeline.channels_last)
                    moved = self._pipeline(moved, context)
                    check(moved)
            except BaseException:
                self._stream.synchronize()  # queued copies still read the host memory
                raise
            assert slot.ready is not None
            slot.ready.record(self._stream)
        return moved

    def _to_move(self, batch: object) -> Iterator[torch.Tensor]:
        if self._on_host and isinstance(batch, Fields):
            return tensors_of([value for name, value in batch.items() if name not in self._on_host])
        return tensors_of(batch)

    def _move_tensor(self, host: torch.Tensor) -> torch.Tensor:
        if host.is_cuda:
            return host
        source = host if self._direct(host) else self._buffers.stage(host)
        # same dtype, contiguous: otherwise torch copies through a temporary tensor; casts follow on the device
        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        target.copy_(source.as_subclass(torch.Tensor), non_blocking=True)
        return target if type(host) is torch.Tensor else _like(target, host)

    def _move_object(self, value: Movable) -> object:
        on_device = getattr(value, "is_cuda", False) or getattr(value, "device", None) == self._device
        return (value if on_device else value.pin_memory()).to(self._device, non_blocking=True)

    def _direct(self, host: torch.Tensor) -> bool:
        """Whether the device can read this memory directly."""
        if host.is_cuda or host.numel() == 0:
            return True
        return host.is_contiguous() and (host.data_ptr() in self._pinned or host.is_pinned())


def _like(moved: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same subclass, with its attributes, such as torchvision's ``Image``."""
    made = moved.as_subclass(type(host))
    made.__dict__.update(host.__dict__)
    return made


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
