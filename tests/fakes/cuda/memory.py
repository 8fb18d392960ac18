"""Memory of the simulated machine: the caching allocator of the devices, and host memory that is pinned."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

import torch

from tests.fakes.cuda.machine import Marker, Work

if TYPE_CHECKING:
    from tests.fakes.cuda.machine import Machine, SimStream

_UNIT_BYTES: Final = 512
_FRESH: Final = 0xCD
_PAGE_BYTES: Final = 4096
INVALID_VALUE, NOT_SUPPORTED, ALREADY_REGISTERED, NOT_REGISTERED, CAPTURE_UNSUPPORTED = 1, 801, 712, 713, 900


class Block:
    """A piece of device memory; ``uses`` are the streams that ``record_stream`` named since it was handed out."""

    __slots__ = ("buffer", "size_bytes", "stream", "uses")

    def __init__(self, size_bytes: int, stream: SimStream) -> None:
        self.buffer = torch.full((size_bytes,), _FRESH, dtype=torch.uint8, device="cpu")
        self.size_bytes = size_bytes
        self.stream = stream
        self.uses: list[SimStream] = []


class Handle:
    """Lives as long as a device storage; its end frees the block."""

    __slots__ = ("_allocator", "block")

    def __init__(self, allocator: Allocator, block: Block) -> None:
        self._allocator = allocator
        self.block = block

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._allocator.free(self.block)


class Allocator:
    """c10's caching allocator: a freed block goes back to the stream that it was allocated on.

    It goes back at once, or after the work queued at that moment on the streams that ``record_stream`` named.

    Attributes:
        reserved_bytes: what was taken from the device; it is never given back.
    """

    def __init__(self, machine: Machine) -> None:
        self.reserved_bytes = 0
        self._machine = machine
        self._pools: dict[SimStream, list[Block]] = defaultdict(list)
        self._waiting: list[tuple[Block, list[Marker]]] = []
        self._freed: deque[Block] = deque()  # by the garbage collector, in the middle of something else

    def malloc(self, size_bytes: int, stream: SimStream) -> Handle:
        """Return a block of ``stream``: the one freed last that fits, else a new one from the device."""
        with self._machine.lock:
            self._take_in()
            size_bytes = max(_UNIT_BYTES, -(-size_bytes // _UNIT_BYTES) * _UNIT_BYTES)
            pool = self._pools[stream]
            fits = [block for block in pool if block.size_bytes == size_bytes]
            if fits:
                pool.remove(fits[-1])
                fits[-1].uses = []
                return Handle(self, fits[-1])
            self._machine.note("cudaMalloc")
            self.reserved_bytes += size_bytes
            return Handle(self, Block(size_bytes, stream))

    def free(self, block: Block) -> None:
        """Take a block back; from any thread, also from the garbage collector."""
        self._freed.append(block)
        lock = self._machine.lock
        # A thread that holds the lock is in the middle of something: the next malloc takes the block in.
        if not lock._is_owned() and lock.acquire(blocking=False):  # type: ignore[attr-defined]  # not in typeshed
            try:
                self._take_in()
            finally:
                lock.release()

    def _take_in(self) -> None:
        while self._freed:
            block = self._freed.popleft()
            markers = [Marker(stream) for stream in dict.fromkeys(block.uses)]
            for marker in markers:
                self._machine.launch(marker.stream, Work(sets=marker))
            self._waiting.append((block, markers))
        for entry in list(self._waiting):
            if all(marker.done for marker in entry[1]):
                self._waiting.remove(entry)
                self._pools[entry[0].stream].append(entry[0])


class HostMemory:
    """Host memory that the devices read by themselves, and ``torch.cuda.cudart()``.

    Attributes:
        refuses: the error with which registration fails; 0: it does not.
        hides_registered: whether registered memory is not called pinned.
    """

    def __init__(self, machine: Machine) -> None:
        self.refuses = 0
        self.hides_registered = False
        self.pinned: dict[int, int] = {}  # start -> bytes
        self._allocated: set[int] = set()
        self._machine = machine

    def is_pinned(self, address: int) -> bool:
        """Tell whether an address lies in pinned memory."""
        return any(
            start <= address < start + size and (start in self._allocated or not self.hides_registered)
            for start, size in list(self.pinned.items())
        )

    def registered_count(self) -> int:
        """Return how many mappings are registered now."""
        return len(self.pinned) - len(self._allocated)

    def owner(self, host: torch.Tensor) -> object:
        """Return what a queued copy from ``host`` keeps alive: torch's own pinned memory, and nothing registered."""
        return host.untyped_storage() if host.untyped_storage().data_ptr() in self._allocated else None

    def allocate(self, host: torch.Tensor) -> None:
        """Take note of memory that was allocated pinned; it is forgotten when its storage dies."""
        self._machine.note("cudaHostAlloc")
        if host.numel():
            start = host.data_ptr()
            self.pinned[start] = host.numel() * host.element_size()
            self._allocated.add(start)
            weakref.finalize(host.untyped_storage(), self._forget, start).atexit = False

    def _forget(self, start: int) -> None:
        self.pinned.pop(start, None)
        self._allocated.discard(start)

    def cudaHostRegister(self, address: int, size_bytes: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
        """Pin a mapping; refuse what CUDA refuses."""
        if not self._machine.allows("cudaHostRegister"):
            return CAPTURE_UNSUPPORTED
        with self._machine.lock:
            error = self.refuses or self._refusal(address, size_bytes)
            if not error:
                self.pinned[address] = size_bytes
        return error

    def _refusal(self, address: int, size_bytes: int) -> int:
        ends = ((start, start + size) for start, size in self.pinned.items())
        if size_bytes > 0 and any(start < address + size_bytes and address < end for start, end in ends):
            return ALREADY_REGISTERED
        rights = mapped(address, size_bytes) if size_bytes > 0 else []
        if not rights:
            return INVALID_VALUE
        if any("p" in right for right in rights):
            self._machine.violations.append("registered a private mapping")
        if address % _PAGE_BYTES or size_bytes % _PAGE_BYTES:
            self._machine.violations.append(f"registered {size_bytes} bytes at {address:#x}: not whole pages")
        return NOT_SUPPORTED if any("w" not in right for right in rights) else 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        """Unpin a mapping; nothing may read it any more, and it must still be mapped."""
        machine = self._machine
        if not machine.allows("cudaHostUnregister"):
            return CAPTURE_UNSUPPORTED
        with machine.lock:
            size_bytes = self.pinned.pop(address, None)
            if size_bytes is None:
                return NOT_REGISTERED
            if not mapped(address, size_bytes):
                machine.violations.append("unregistered after munmap")
            reads = (work.host_range for stream in machine.streams for work in stream.queue)
            if any(read.start < address + size_bytes and address < read.stop for read in reads):
                machine.violations.append("unregistered while a copy reads it")
        return 0

    def cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802 - CUDA's name
        """Swap the calling thread's capture mode with the one ``mode`` refers to."""
        thread = self._machine.thread
        thread.capture_mode, mode._obj.value = mode._obj.value, thread.capture_mode
        return 0


def mapped(address: int, size_bytes: int) -> list[str]:
    """Return the rights of each mapping that ``[address, address + size_bytes)`` lies in; empty: not all is mapped."""
    rights: list[str] = []
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123 - read for each copy
        for line in maps:
            span, right = line.split(None, 2)[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                rights.append(right)
                if end >= address + size_bytes:
                    return rights
                size_bytes -= end - address
                address = end
    return []
