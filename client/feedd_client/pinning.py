"""Host memory that a GPU reads directly: the arena registered with CUDA, else a small ring of pinned buffers."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from feedd_client import capture
from feedd_client.numa import move_near

if TYPE_CHECKING:
    from feedd_client.events import HostEvent
    from feedd_client.shm import Mapping

_log: Final = logging.getLogger("feedd_client")
_PORTABLE: Final = 1  # cudaHostRegisterPortable: valid in every context of the process
_RING_BUFFERS: Final = 2

_registered: dict[tuple[int, int], bool] = {}  # (pid, address) -> registered; each mapping is tried only once


def register(mapping: Mapping, device: torch.device) -> bool:
    """Register the whole arena with CUDA, once per mapping; return whether the device can read it directly.

    The arena first moves to the GPU's memory node. The mapping unregisters itself before its memory goes away. A fork
    does not inherit the registration.
    """
    address, size_bytes = mapping.address, len(mapping)
    key = (os.getpid(), address)
    known = _registered.get(key)
    if known is not None or size_bytes == 0 or mapping.pid != os.getpid() or mapping.private:
        return bool(known)
    began_s = time.perf_counter()
    move_near(mapping, device)
    with capture.relaxed(), torch.cuda.device(device):
        code = int(_cudart().cudaHostRegister(address, size_bytes, _PORTABLE))
        if code != 0:
            _clear_error()
    mapping.on_unmap.append(lambda: _forget(key, device))
    took_ms = (time.perf_counter() - began_s) * 1e3
    _registered[key] = code == 0
    if code != 0:
        _log.warning("CUDA refused to register shared memory (error %d); batches go through a pinned buffer", code)
        return False
    if not torch.from_numpy(mapping.view(0, 1)).is_pinned():
        _log.warning("CUDA registered shared memory but does not report it pinned; batches go through a pinned buffer")
        return False
    _log.info("registered %d MiB of shared memory with CUDA in %.0f ms", size_bytes >> 20, took_ms)
    return True


def _clear_error() -> None:
    """Clear CUDA's pending "last error": otherwise it would fail the next kernel launch of other code."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)


def _forget(key: tuple[int, int], device: torch.device) -> None:
    if _registered.pop(key, False):
        # The last view may die in any thread, with any current device.
        with capture.relaxed(), torch.cuda.device(device):
            code = int(_cudart().cudaHostUnregister(key[1]))
            if code != 0:
                _clear_error()
                _log.warning("CUDA could not unregister shared memory (error %d)", code)


def _cudart() -> Any:  # noqa: ANN401 - a C extension module without types
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped


class PinnedBuffers:
    """Pinned buffers for host memory that CUDA cannot read asynchronously; reused after a buffer's copies ended."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = [
            torch.empty(0, dtype=torch.uint8, device="cpu") for _ in range(_RING_BUFFERS)
        ]
        self._events: list[HostEvent | None] = [None] * _RING_BUFFERS
        self._at = 0
        self._used_bytes = 0

    @property
    def memory(self) -> torch.Tensor:
        """The current buffer."""
        return self._buffers[self._at]

    @property
    def addresses(self) -> range:
        """Addresses of the current buffer that are in use; empty: the batch needed no buffer."""
        start = self.memory.data_ptr()
        return range(start, start + self._used_bytes)

    def begin(self, size_bytes: int) -> None:
        """Switch to the next buffer, wait until its copies ended, and make it large enough for a whole batch."""
        self._at = (self._at + 1) % _RING_BUFFERS
        event = self._events[self._at]
        if event is not None:
            event.synchronize()
        if self._buffers[self._at].numel() < size_bytes:
            memory_bytes = 1 << (size_bytes - 1).bit_length()  # power of two: batches of varying size rarely reallocate
            self._buffers[self._at] = torch.empty(memory_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._used_bytes = 0

    def stage(self, source: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy of ``source``, valid until its buffer is used again."""
        size_bytes = source.numel() * source.element_size()
        place = self._buffers[self._at][self._used_bytes : self._used_bytes + size_bytes]
        staged = place.view(source.dtype).view(source.shape)
        staged.copy_(source.as_subclass(torch.Tensor))
        self._used_bytes += aligned(size_bytes)
        return staged

    def end(self, event: HostEvent) -> None:
        """Record the event after which the buffer is free, if the batch used one."""
        if self._used_bytes:
            self._events[self._at] = event
        self._used_bytes = 0


def aligned(size_bytes: int) -> int:
    """Return the size rounded up to 64 bytes, so that any dtype may follow."""
    return -(-size_bytes // 64) * 64
