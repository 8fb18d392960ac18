"""Tensors of the simulated devices: every operation on them is queued on the calling thread's current stream."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.fakes.cuda.machine import Work
from tests.fakes.cuda.memory import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fakes.cuda.device import Cuda
    from tests.fakes.cuda.machine import SimStream
    from tests.fakes.cuda.memory import Handle

_TENSOR: Final[Any] = torch.Tensor
_VIEWS: Final = re.compile(
    "view|_unsafe_view|permute|transpose|t|slice|select|expand|unsqueeze|squeeze|detach|alias|as_strided|unbind|split"
    "|split_with_sizes|diagonal|movedim|narrow|flatten|unfold"
)
_RANDOM: Final = frozenset({"normal_", "uniform_", "random_", "bernoulli_"})


class SimTensor(_TENSOR):  # type: ignore[misc]  # torch types what a subclass must override otherwise
    """A tensor that says that it is on a CUDA device.

    Attributes:
        elem: the device's memory as a CPU tensor; only queued work may touch its values.
        handle: keeps the block allocated.
        number: of the device.
    """

    elem: torch.Tensor
    handle: Handle
    number: int
    cuda_: Cuda

    @staticmethod
    def __new__(cls: Any, elem: torch.Tensor, handle: Handle, index: int, cuda: Cuda) -> Any:
        """Wrap the memory ``elem`` of a block."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=torch.device("cpu"),
        )
        made.elem, made.handle, made.number, made.cuda_ = elem, handle, index, cuda
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"SimTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """The simulated device."""
        return torch.device(self.cuda_.machine.kind, self.number)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.cuda_.machine.kind == "cuda"

    @property
    def is_cpu(self) -> bool:
        """False."""
        return False

    @property
    def data(self) -> Any:
        """The same memory, which is no view for autograd."""
        return SimTensor(self.elem, self.handle, self.number, self.cuda_)

    def record_stream(self, stream: SimStream) -> None:
        """Let the allocator wait for ``stream`` before it reuses the block."""
        with self.cuda_.machine.lock:
            if stream is not self.handle.block.stream:
                self.handle.block.uses.append(stream)

    def data_ptr(self) -> int:
        """Return where the memory lies."""
        return self.elem.data_ptr()

    def copy_(self, src: torch.Tensor, non_blocking: bool = False) -> Self:
        """Queue a copy."""
        copy_into(self, src, non_blocking=non_blocking)
        return self

    def is_pinned(self, *_args: Any) -> bool:
        """False: this is no host memory."""
        return False

    def tolist(self) -> Any:
        """Wait, and return the values."""
        return to_host(self).tolist()

    def cpu(self, *_args: Any) -> torch.Tensor:
        """Wait, and return a copy on the host."""
        return to_host(self)

    def item(self) -> Any:
        """Wait, and return the value."""
        return to_host(self).item()

    def __bool__(self) -> bool:
        return bool(to_host(self))

    def __int__(self) -> int:
        return int(to_host(self))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Queue an operation."""
        return _dispatch(func, args, dict(kwargs or {}))


def to_host(tensor: SimTensor) -> torch.Tensor:
    """Wait for the current stream, and return a copy."""
    machine, stream = tensor.cuda_.machine, tensor.cuda_.machine.current_stream(tensor.device)
    host, elem = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), tensor.elem
    machine.launch(stream, Work(run=lambda: host.copy_(elem)))
    stream.synchronize()
    return host


def allocate(cuda: Cuda, shape: Sequence[int], dtype: torch.dtype, index: int, stride: Any = None) -> SimTensor:
    """Return an uninitialised device tensor."""
    meta = (
        torch.empty(shape, dtype=dtype, device="meta")
        if stride is None
        else torch.empty_strided(tuple(shape), stride, dtype=dtype, device="meta")
    )
    size_bytes = meta.untyped_storage().nbytes()
    handle = cuda.allocator.malloc(size_bytes, cuda.machine.current_stream(index))
    elem = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    if size_bytes:
        elem = handle.block.buffer[:size_bytes].view(dtype).as_strided(meta.shape, meta.stride())
    made: SimTensor = SimTensor(elem, handle, index, cuda)
    return made


def copy_into(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """Queue ``target.copy_(source)``; one of both is on a device."""
    device = target if isinstance(target, SimTensor) else source
    assert isinstance(device, SimTensor)
    if target.numel() == 0:
        return
    machine = device.cuda_.machine
    stream = machine.current_stream(device.device)
    if isinstance(target, SimTensor) and not isinstance(source, SimTensor):
        machine.launch(stream, _upload(target, source))
    else:
        into = target.elem if isinstance(target, SimTensor) else target
        values = source.elem if isinstance(source, SimTensor) else source
        machine.launch(stream, Work(run=lambda: into.copy_(values)))
        non_blocking = non_blocking or isinstance(target, SimTensor)
    if not non_blocking:
        stream.synchronize()


def _upload(target: SimTensor, source: torch.Tensor) -> Work:
    """Return a copy to the device: pinned memory is read when it runs, pageable memory now."""
    cuda, elem = target.cuda_, target.elem
    cuda.machine.calls["copies"] += 1
    if source.dtype != target.dtype or not source.is_contiguous():
        cuda.machine.calls["copies through a temporary"] += 1
        source = source.to(target.dtype).contiguous()
    address, size_bytes = source.data_ptr(), source.numel() * source.element_size()
    if not cuda.host.is_pinned(address):
        cuda.machine.calls["pageable copies"] += 1
        now = source.clone()
        return Work(run=lambda: elem.copy_(now))
    # The device reads whatever is at that address when the copy runs. Torch's host allocator waits for that before it
    # hands memory out again; CUDA itself keeps nothing alive.
    dtype, shape, owner = source.dtype, tuple(source.shape), cuda.host.owner(source)

    def run(_owner: object = owner) -> None:
        if _owner is None and not mapped(address, size_bytes):
            cuda.machine.violations.append("copied from memory that is gone")
            return
        there = bytearray((ctypes.c_ubyte * size_bytes).from_address(address))
        elem.copy_(torch.frombuffer(there, dtype=torch.uint8).view(dtype).view(shape))

    return Work(run=run, host_range=range(address, address + size_bytes))


def _plain(value: object) -> object:
    return value.elem if isinstance(value, SimTensor) else value


def _meta(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:  # noqa: PLR0911 - one answer per kind
    name = func._schema.name.split("::")[1]
    ours: list[SimTensor] = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, SimTensor)]
    first = ours[0]
    if name == "copy_":
        copy_into(args[0], args[1], non_blocking=bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
        return args[0]
    if name == "_to_copy" and torch.device(kwargs.get("device") or first.device).type == "cpu":
        return to_host(args[0]).to(kwargs.get("dtype") or args[0].dtype)
    if name == "_local_scalar_dense":
        return to_host(args[0]).item()
    if name == "is_pinned":
        return False
    writes = [one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    if _VIEWS.fullmatch(name) and not writes:
        made = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        return tree_map(
            lambda one: (
                SimTensor(one, first.handle, first.number, first.cuda_) if isinstance(one, torch.Tensor) else one
            ),
            made,
        )
    _check_devices(name, first, tree_leaves((args, kwargs)))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    plain_args, plain_kwargs = tree_map(_plain, args), tree_map(_plain, kwargs)
    if writes:
        return _write(func, name, args, kwargs, lambda: func(*plain_args, **plain_kwargs))
    return _compute(func, first, plain_args, plain_kwargs)


def _check_devices(name: str, first: SimTensor, leaves: list[object]) -> None:
    """Refuse what CUDA refuses.

    Raises:
        RuntimeError: tensors lie on several devices.
    """
    for leaf in leaves:
        if isinstance(leaf, SimTensor):
            alien = leaf.number != first.number
        else:
            alien = isinstance(leaf, torch.Tensor) and leaf.ndim > 0 and not name.startswith("index")
        if alien:
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two ({name})")


def _write(func: Any, name: str, args: Any, kwargs: dict[str, Any], run: Callable[[], object]) -> Any:
    """Queue an operation that writes to one of its arguments."""
    target = args[0] if name.endswith("_") else kwargs.get("out", args[0])
    machine, stream = target.cuda_.machine, target.cuda_.machine.current_stream(target.device)
    if name in _RANDOM:  # a generator gives its numbers when the kernel is launched
        drawn = func(torch.empty(target.shape, dtype=target.dtype, device="cpu"), *args[1:], **kwargs)
        machine.launch(stream, Work(run=lambda: target.elem.copy_(drawn)))
    else:
        machine.launch(stream, Work(run=run))
    return target


def _compute(func: Any, first: SimTensor, args: Any, kwargs: dict[str, Any]) -> Any:
    """Allocate what an operation returns now, and queue its computation."""
    shapes = {**kwargs, "device": torch.device("meta")} if kwargs.get("device") is not None else kwargs
    metas = func(*tree_map(_meta, args), **tree_map(_meta, shapes))
    single = isinstance(metas, torch.Tensor)
    outs = [
        allocate(first.cuda_, meta.shape, meta.dtype, first.number, meta.stride())
        for meta in ([metas] if single else metas)
    ]
    elems = [out.elem for out in outs]

    def run() -> None:
        results = func(*args, **kwargs)
        for elem, result in zip(elems, [results] if single else results, strict=True):
            elem.copy_(result)

    first.cuda_.machine.launch(first.cuda_.machine.current_stream(first.device), Work(run=run))
    return outs[0] if single else tuple(outs)
