"""Keeps the trainer's CUDA graph capture intact while feedd's threads call CUDA.

While one thread captures a graph in "global" mode, CUDA forbids other threads to allocate, register memory or wait for
events, unless they have relaxed their own mode. PyTorch has no function for this, so the loaded runtime is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log: Final = logging.getLogger("feedd_client")
_RELAXED: Final = 2  # cudaStreamCaptureModeRelaxed, and hipStreamCaptureModeRelaxed
_RUNTIMES: Final = (
    ("libcudart", "cudaThreadExchangeStreamCaptureMode"),
    ("libtorch_cuda", "cudaThreadExchangeStreamCaptureMode"),
    ("libamdhip64", "hipThreadExchangeStreamCaptureMode"),
)


def relax() -> None:
    """Relax the calling thread's capture mode for the thread's lifetime."""
    _exchange_mode(_RELAXED)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Relax the calling thread's capture mode inside a ``with`` block."""
    before = _exchange_mode(_RELAXED)
    try:
        yield
    finally:
        _exchange_mode(before)


def _exchange_mode(mode: int) -> int:
    """Set the calling thread's mode and return the previous mode."""
    exchange = runtime_function()
    if exchange is None:
        return mode
    cell = ctypes.c_int(mode)
    exchange(ctypes.byref(cell))
    return cell.value


@functools.cache
def runtime_function() -> Callable[[Any], Any] | None:
    """Return the exchange function of the CUDA or HIP runtime that torch loaded, or None."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    loaded = sorted({line.split(None, 5)[5] for line in lines if "/" in line})
    for prefix, name in _RUNTIMES:
        for path in loaded:
            if Path(path).name.startswith(prefix):
                with contextlib.suppress(OSError, AttributeError):
                    function: Callable[[Any], Any] = getattr(ctypes.CDLL(path), name)
                    return function
    _log.warning(
        "the CUDA runtime has no function to relax graph capture in the copy thread: to capture a graph, use"
        " torch.cuda.graph(..., capture_error_mode='thread_local')"
    )
    return None
