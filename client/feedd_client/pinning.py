"""Host memory a GPU can read by itself: the arena registered with CUDA, else a small ring of pinned buffers."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from feedd_client.shm import Mapping

_log: Final = logging.getLogger("feedd_client")
_PORTABLE: Final = 1  # cudaHostRegisterPortable: valid in every context of the process
_MADV_POPULATE_WRITE: Final = 23  # so that registration does not fault page by page; Linux 5.14, else ignored
_RING_BUFFERS: Final = 2

_registered: dict[tuple[int, int], bool] = {}  # (pid, address) -> registered; never asked twice for one mapping


def register(mapping: Mapping) -> bool:
    """Register the whole arena with CUDA, once per mapping; False where CUDA refuses.

    The mapping unregisters itself before it goes away. A fork does not inherit the registration.
    """
    address, size_bytes = mapping.address, len(mapping)
    key = (os.getpid(), address)
    known = _registered.get(key)
    if known is not None or size_bytes == 0 or mapping.pid != os.getpid() or mapping.private:
        return bool(known)
    began_s = time.perf_counter()
    with contextlib.suppress(OSError, ValueError):
        mapping.madvise(_MADV_POPULATE_WRITE)
    code = int(_cudart().cudaHostRegister(address, size_bytes, _PORTABLE))
    _registered[key] = code == 0
    mapping.on_unmap.append(lambda: _forget(key))
    took_ms = (time.perf_counter() - began_s) * 1e3
    if code == 0:
        _log.info("registered %d MiB of shared memory with CUDA in %.0f ms", size_bytes >> 20, took_ms)
    else:
        _clear_error()
        _log.warning("CUDA refused to register shared memory (error %d); batches go through a pinned buffer", code)
    return code == 0


def _clear_error() -> None:
    """Take the pending error out of CUDA's "last error": left there, it would fail somebody else's kernel launch."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)


def _forget(key: tuple[int, int]) -> None:
    if _registered.pop(key, False):
        code = int(_cudart().cudaHostUnregister(key[1]))
        if code != 0:
            _clear_error()
            _log.warning("CUDA could not unregister shared memory (error %d)", code)


def _cudart() -> Any:  # noqa: ANN401 - a C extension module without types
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped


class PinnedRing:
    """Pinned buffers for host memory CUDA cannot read asynchronously; a buffer is reused after its copies ended."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8) for _ in range(_RING_BUFFERS)]
        self._events: list[torch.cuda.Event | None] = [None] * _RING_BUFFERS
        self._at = 0
        self._used_bytes = 0

    def begin(self, size_bytes: int) -> None:
        """Turn to the next buffer, wait until its copies ended, and make it large enough for a whole batch."""
        self._at = (self._at + 1) % _RING_BUFFERS
        event = self._events[self._at]
        if event is not None:
            event.synchronize()
        if self._buffers[self._at].numel() < size_bytes:
            self._buffers[self._at] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self._used_bytes = 0

    def stage(self, source: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy of ``source``, valid until its buffer's turn comes again."""
        size_bytes = source.numel() * source.element_size()
        place = self._buffers[self._at][self._used_bytes : self._used_bytes + size_bytes]
        staged = place.view(source.dtype).view(source.shape)
        staged.copy_(source)
        self._used_bytes += aligned(size_bytes)
        return staged

    def end(self, event: torch.cuda.Event) -> None:
        """Take note of the event after which the buffer is free."""
        self._events[self._at] = event


def aligned(size_bytes: int) -> int:
    """Return the size rounded up so that any dtype may follow."""
    return -(-size_bytes // 64) * 64
