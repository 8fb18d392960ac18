"""Copies from host to device on the copy stream, and the events that mark their completion."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Mapping as Fields
from typing import TYPE_CHECKING, Protocol

import torch

from feedd_client.block_copy import blocks_of, bytes_of
from feedd_client.containers import check, leaves, map_leaves, private_copy, tensors_of
from feedd_client.errors import BadOptionError
from feedd_client.events import DeviceSlot, DoneEvent
from feedd_client.pinning import PinnedBuffers, aligned, register

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from feedd_client.containers import Movable
    from feedd_client.shm import Mapping
    from feedd_client.streams import DeviceStreams
    from feedd_client.transforms import BatchNumber, Generators, Pipeline


class BatchCopier(Protocol):
    """Copies batches to a device: ``Copier`` if the device has streams, else ``HostCopier``."""

    def enter_thread(self) -> None:
        """Prepare the calling thread, which will make all copies."""

    def new_slot(self) -> DeviceSlot:
        """Return a new slot with its own events."""

    def copy(self, batch: object, mapping: Mapping | None, slot: DeviceSlot, at: BatchNumber) -> object:
        """Start the copy and return the device batch.

        The caller keeps ``batch`` and its memory unchanged until ``slot.copied``. The caller's stream waits for
        ``slot.ready`` before using the result. If this method raises, nothing reads the host memory any more.
        """


class HostFields:
    """Fields that are not copied as they are: those that stay on the CPU, and those that a decoder takes."""

    def __init__(self, on_host: tuple[str, ...], decode: Fields[str, Callable[..., Any]]) -> None:
        """Keep the names.

        Args:
            on_host: fields that stay on the CPU.
            decode: decoders by field. A decoder gets the field's host memory and the device.
        """
        self._on_host = on_host
        self._decode = decode

    def __contains__(self, name: object) -> bool:
        return name in self._on_host or name in self._decode

    def __bool__(self) -> bool:
        return bool(self._on_host or self._decode)

    def check(self, batch: object) -> None:
        """Check that a batch has these fields.

        Raises:
            BadOptionError: a field is missing.
        """
        for name in (*self._on_host, *self._decode):
            if not isinstance(batch, Fields) or name not in batch:
                has = list(batch) if isinstance(batch, Fields) else type(batch).__name__
                option = "on_host" if name in self._on_host else "decode"
                raise BadOptionError(f"expected a field {name!r} in each batch, got {has}", object=option)

    def values_of(self, batch: object, device: torch.device) -> dict[str, Callable[[Any], Any]]:
        """Return a function for each of the fields, with decoded results where there is a decoder."""
        if not self or not isinstance(batch, Fields):
            return {}
        decoded = {name: decoder(batch[name], device) for name, decoder in self._decode.items()}
        keep = _same if device.type == "cpu" else private_copy
        made: dict[str, Callable[[Any], Any]] = dict.fromkeys(self._on_host, keep)
        for name, result in decoded.items():
            made[name] = functools.partial(_given, result)
        return made

    def others(self, batch: object) -> object:
        """Return the values of the other fields, or the batch."""
        if self and isinstance(batch, Fields):
            return [value for name, value in batch.items() if name not in self]
        return batch


class Copier:
    """Copies the batches of one pass to one device with streams. All calls come from one thread."""

    def __init__(
        self,
        streams: DeviceStreams,
        pipeline: Pipeline,
        generators: Generators,
        host_fields: HostFields,
        registered: Callable[[float], None] = lambda _took_s: None,
    ) -> None:
        """Set up the copy stream and the ring of pinned buffers.

        Args:
            streams: streams of the device.
            pipeline: transforms to run on each batch after its copy.
            generators: random generators for the transforms.
            host_fields: fields that are not copied.
            registered: called with the seconds that registering shared memory took.
        """
        self._streams = streams
        self._device = streams.device
        self._pipeline = pipeline
        self._generators = generators
        self._host_fields = host_fields
        self._registered = registered
        self._stream = streams.copy_stream()
        self._buffers = PinnedBuffers()
        self._seen: weakref.ref[Mapping] | None = None
        self._pinned = range(0)  # addresses of the registered arena

    def enter_thread(self) -> None:
        """Make the device current in the calling thread, without gradients and with one CPU thread."""
        self._streams.enter_thread()
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)

    def new_slot(self) -> DeviceSlot:
        """Return a new slot. The host waits for its ``copied`` and ``taken`` events without spinning."""
        return DeviceSlot(
            copied=self._streams.new_event(timed=True, awaited=True),
            ready=self._streams.new_event(),
            taken=self._streams.new_event(awaited=True),
            started=self._streams.new_event(timed=True),
        )

    def register(self, mapping: Mapping | None) -> None:
        """Make an arena readable by the device, once per arena; None: batches travel inline."""
        if mapping is None or self._device.type != "cuda":  # no other accelerator registers foreign memory
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
        self._host_fields.check(batch)
        with self._streams.on(self._stream):
            try:
                fields = self._host_fields.values_of(batch, self._device)
                sources = self._sources(batch)
                assert slot.started is not None
                slot.started.record(self._stream)
                moved_tensors, slot.copied_bytes = self._move(list(sources.values()), mapping)
                there = dict(zip(sources, moved_tensors, strict=True))
                moved = map_leaves(batch, lambda host: _like(there.get(id(host)), host), self._move_object, fields)
                slot.copied.record(self._stream)
                self._buffers.end(slot.copied)
                if self._pipeline:
                    context = self._generators.context(at, channels_last=self._pipeline.channels_last)
                    moved = self._pipeline(moved, context)
                if self._pipeline or fields:
                    check(moved)
            except BaseException:
                self._stream.synchronize()  # queued copies still read the host memory
                raise
            assert slot.ready is not None
            slot.ready.record(self._stream)
        return moved

    def _sources(self, batch: object) -> dict[int, torch.Tensor]:
        """Return the tensors to copy from, by the identity of the batch's tensors."""
        found = {id(one): one for one in tensors_of(self._host_fields.others(batch)) if one.is_cpu}
        direct = {key: self._direct(one) for key, one in found.items()}
        bounced_bytes = sum(aligned(bytes_of(one)) for key, one in found.items() if not direct[key])
        if bounced_bytes:
            self._buffers.begin(bounced_bytes)
        return {key: one if direct[key] else self._buffers.stage(one) for key, one in found.items()}

    def _move(self, sources: list[torch.Tensor], mapping: Mapping | None) -> tuple[list[torch.Tensor], int]:
        """Start the copies; return the tensors on the device, and the bytes that are copied."""
        blocks = [(block, self._buffers.memory) for block in blocks_of(sources, self._buffers.addresses)]
        if mapping is not None and self._pinned:
            blocks += [
                (block, torch.from_numpy(mapping.view(0, len(mapping)))) for block in blocks_of(sources, self._pinned)
            ]
        moved: dict[int, torch.Tensor] = {}
        copied_bytes = 0
        for block, memory in blocks:
            start = block.memory.start - memory.data_ptr()
            flat = memory[start : start + len(block.memory)]
            together = block.copied(lambda _, flat=flat: self._copied(flat))  # type: ignore[misc]  # bound
            moved |= {id(one): there for one, there in zip(block.tensors, together, strict=True)}
            copied_bytes += len(block.memory)
        for one in sources:
            if id(one) not in moved:
                moved[id(one)] = self._copied(one)
                copied_bytes += bytes_of(one)
        return [moved[id(one)] for one in sources], copied_bytes

    def _copied(self, source: torch.Tensor) -> torch.Tensor:
        # same dtype, contiguous: otherwise torch copies through a temporary tensor; casts follow on the device
        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        return target.copy_(source.as_subclass(torch.Tensor), non_blocking=True)

    def _move_object(self, value: Movable) -> object:
        on_device = getattr(value, "is_cuda", False) or getattr(value, "device", None) == self._device
        return (value if on_device else value.pin_memory()).to(self._device, non_blocking=True)

    def _direct(self, host: torch.Tensor) -> bool:
        """Whether the device can read this memory directly."""
        if host.numel() == 0:
            return True
        return host.is_contiguous() and (host.data_ptr() in self._pinned or host.is_pinned())


class HostCopier:
    """Moves batches to a device without streams, such as the CPU or MPS, while the trainer computes."""

    def __init__(
        self,
        device: torch.device,
        pipeline: Pipeline,
        generators: Generators,
        host_fields: HostFields,
        *,
        leased: bool = False,
    ) -> None:
        """Keep how to move batches.

        Args:
            device: a device without streams.
            pipeline: transforms to run on each batch.
            generators: random generators for the transforms.
            host_fields: fields that are not moved.
            leased: batches are memory of the daemon, which the trainer must not keep.
        """
        self._leased = leased
        self._device = device
        self._pipeline = pipeline
        self._generators = generators
        self._host_fields = host_fields

    def enter_thread(self) -> None:
        """Switch gradients off in the calling thread."""
        torch.set_grad_enabled(False)

    def new_slot(self) -> DeviceSlot:
        """Return a new slot, whose events have always happened."""
        return DeviceSlot(DoneEvent(), None, DoneEvent())

    def copy(self, batch: object, mapping: Mapping | None, slot: DeviceSlot, at: BatchNumber) -> object:
        """Return the batch on the device; on the CPU, tensors without a transform are the batch's own."""
        del mapping
        self._host_fields.check(batch)
        fields = self._host_fields.values_of(batch, self._device)
        began_s = time.perf_counter()
        if self._device.type == "cpu":
            for _ in leaves(batch):  # raises for the types that a GPU would refuse too
                pass
            moved = map_leaves(batch, torch.clone if self._leased else _same, fields=fields)
        else:
            slot.copied_bytes = sum(bytes_of(one) for one in tensors_of(self._host_fields.others(batch)) if one.is_cpu)
            moved = map_leaves(batch, self._to, self._to, fields)
            slot.copied_s = time.perf_counter() - began_s
        if self._pipeline:
            context = self._generators.context(at, channels_last=self._pipeline.channels_last)
            moved = self._pipeline(moved, context)
        if self._pipeline or fields:
            check(moved)
        return moved

    def _to(self, value: Any) -> Any:  # noqa: ANN401 - a tensor, or an object that moves itself
        return value.to(self._device)  # waits: the slot may go back afterwards


def _given(result: Any, _value: object) -> Any:  # noqa: ANN401 - what a decoder returned
    return result


def _same(value: Any) -> Any:  # noqa: ANN401 - a value of any type
    return value


def _like(moved: torch.Tensor | None, host: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same subclass, with its attributes, such as torchvision's ``Image``."""
    if moved is None:  # on the device already
        return host
    if type(host) is torch.Tensor:
        return moved
    made = moved.as_subclass(type(host))
    made.__dict__.update(host.__dict__)
    return made
