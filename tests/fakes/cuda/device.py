"""Puts the simulated devices in torch's place, for as long as a test runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from feedd_client import streams
from tests.fakes.cuda.machine import DEVICE_COUNT, SCHEDULES, Machine, SimEvent, SimStream, Work
from tests.fakes.cuda.memory import Allocator, HostMemory
from tests.fakes.cuda.tensors import SimTensor, allocate, copy_into, to_host

if TYPE_CHECKING:
    import pytest

_FACTORIES: Final = (
    "zeros",
    "ones",
    "tensor",
    "arange",
    "full",
    "randint",
    "rand",
    "randn",
    "randperm",
    "linspace",
    "as_tensor",
)


class SimGenerator:
    """``torch.Generator(device="cuda")``: gives its numbers when a kernel is launched."""

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self.host = torch.Generator("cpu")

    def manual_seed(self, seed: int) -> SimGenerator:
        """Begin a sequence."""
        self.host.manual_seed(seed)
        return self

    def initial_seed(self) -> int:
        """Return what the sequence began with."""
        return self.host.initial_seed()


class Cuda:
    """Two simulated devices.

    Attributes:
        real: whether this is a real device instead.
    """

    real = False

    def __init__(self, schedule: str, kind: str = "cuda") -> None:
        self.kind = kind
        self.machine = Machine(SCHEDULES[schedule], kind)
        self.allocator = Allocator(self.machine)
        self.host = HostMemory(self.machine)

    def sleep(self, _cycles: int = 0) -> None:
        """Stand in for ``torch.cuda._sleep``: one more entry in the queue."""
        self.machine.launch(self.machine.current_stream(), Work())

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Patch torch."""
        _patch_factories(self, patch)
        _patch_tensors(self, patch)
        machine, cuda = self.machine, torch.cuda
        self._install_accelerator(patch)
        if self.kind != "cuda":
            return
        replacements: dict[str, Any] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "_lazy_init": lambda: None,
            "_is_in_bad_fork": lambda: False,
            "device_count": lambda: DEVICE_COUNT,
            "current_device": lambda: machine.thread.device,
            "set_device": machine.set_device,
            "device": machine.on_device,
            "stream": machine.on_stream,
            "current_stream": machine.current_stream,
            "default_stream": lambda device=None: machine.defaults[machine.index_of(device)],
            "synchronize": machine.synchronize,
            "Stream": machine.stream,
            "Event": lambda *, blocking=False, enable_timing=False, **_options: SimEvent(
                machine, blocking=blocking, enable_timing=enable_timing
            ),
            "graph": machine.capturing,
            "CUDAGraph": object,
            "cudart": lambda: self.host,
            "_sleep": self.sleep,
            "memory_reserved": lambda device=None: self.allocator.reserved_bytes,
        }
        for name, replacement in replacements.items():
            patch.setattr(cuda, name, replacement)

    def has(self, device: Any) -> bool:
        """Tell whether a device, however it is named, is one of these."""
        if device is None or isinstance(device, int):
            return device is not None
        return torch.device(device).type == self.kind

    def _install_accelerator(self, patch: pytest.MonkeyPatch) -> None:
        machine = self.machine
        replacements: dict[str, Any] = {
            "is_available": lambda: True,
            "current_accelerator": lambda *_args: torch.device(self.kind),
            "current_device_index": lambda: machine.thread.device,
            "set_device_index": machine.set_device,
            "current_stream": machine.current_stream,
            "set_stream": lambda stream: machine.thread.streams.update({stream.device_index: stream}),
            "synchronize": machine.synchronize,
        }
        for name, replacement in replacements.items():
            patch.setattr(torch.accelerator, name, replacement)
        # torch imports modules late that derive classes from these two: only the client sees the simulation
        patch.setattr(streams, "torch", _ClientsTorch(machine))


class _ClientsTorch:
    """Torch with simulated streams and events, for one module of the client."""

    def __init__(self, machine: Machine) -> None:
        self.Stream = machine.stream
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def Event(self, _device: Any = None, *, enable_timing: bool = False) -> SimEvent:  # noqa: N802 - torch's name
        """Make an event."""
        return SimEvent(self._machine, enable_timing=enable_timing)


def _patch_factories(cuda: Cuda, patch: pytest.MonkeyPatch) -> None:
    def factory(name: str) -> None:
        real = getattr(torch, name)

        def make(*args: Any, device: Any = None, **options: Any) -> torch.Tensor:
            generator = options.get("generator")
            if isinstance(generator, SimGenerator):
                options["generator"] = generator.host
            if not cuda.has(device):
                return real(*args, device=device, **options)  # type: ignore[no-any-return]  # looked up by name
            host = real(*args, device="cpu", **options)
            made = allocate(cuda, host.shape, host.dtype, cuda.machine.index_of(device))
            copy_into(made, host, non_blocking=False)
            return made

        patch.setattr(torch, name, make)

    for name in _FACTORIES:
        factory(name)
    real_empty, real_generator = torch.empty, torch.Generator

    def empty(*shape: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if not cuda.has(device):
            host = real_empty(*shape, device=device, **options)
            if pin_memory:
                cuda.host.allocate(host)
            return host
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        dtype = options.get("dtype") or torch.get_default_dtype()
        return allocate(cuda, tuple(sizes), dtype, cuda.machine.index_of(device))

    def generator(device: Any = "cpu") -> Any:
        return SimGenerator(cuda.kind, cuda.machine.index_of(device)) if cuda.has(device) else real_generator(device)

    patch.setattr(torch, "empty", empty)
    patch.setattr(torch, "Generator", generator)


def _patch_tensors(cuda: Cuda, patch: pytest.MonkeyPatch) -> None:
    real_to = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        named = args[0] if args and isinstance(args[0], str | torch.device | int) else None
        device = options.get("device", named)
        if device is None:
            return real_to(self, *args, **options)
        rest = args[1:] if named is not None else args
        dtype = options.get("dtype") or next((one for one in rest if isinstance(one, torch.dtype)), None)
        if isinstance(self, SimTensor):
            moved = self if cuda.has(device) else to_host(self)
            return moved if dtype is None else real_to(moved, dtype)
        if not cuda.has(device):
            return real_to(self, *args, **options)
        host = self if dtype is None else real_to(self, dtype)
        made = allocate(cuda, host.shape, host.dtype, cuda.machine.index_of(device))
        copy_into(made, host, non_blocking=bool(options.get("non_blocking", False)))
        return made

    def on_cuda(self: torch.Tensor, device: Any = "cuda", non_blocking: bool = False) -> torch.Tensor:
        return to(self, device, non_blocking=non_blocking)

    def is_pinned(self: torch.Tensor, *_args: Any) -> bool:
        return self.numel() > 0 and cuda.host.is_pinned(self.data_ptr())

    def pin_memory(self: torch.Tensor, *_args: Any) -> torch.Tensor:
        pinned = torch.empty(self.shape, dtype=self.dtype, pin_memory=True)
        return pinned.copy_(self)

    patch.setattr(torch.Tensor, "to", to)
    patch.setattr(torch.Tensor, "cuda", on_cuda)
    patch.setattr(torch.Tensor, "is_pinned", is_pinned)
    patch.setattr(torch.Tensor, "pin_memory", pin_memory)


__all__ = ["Cuda", "SimEvent", "SimStream", "SimTensor"]
