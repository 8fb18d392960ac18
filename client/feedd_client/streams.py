"""Streams and events of one accelerator, through ``torch.accelerator``: CUDA, ROCm, XPU, and others with streams."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import torch

from feedd_client import capture
from feedd_client.errors import BadOptionError, FeedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd_client.events import HostEvent

_WITHOUT_STREAMS: Final = frozenset({"cpu", "mps", "meta"})  # MPS has one queue for all threads
_copy_streams: Final[dict[tuple[int, str, int], Any]] = {}


class DeviceStreams:
    """Streams and events of one device, from ``torch.accelerator``.

    Attributes:
        device: the device, with an index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy_stream(self) -> Any:  # noqa: ANN401 - a stream of any accelerator
        """Return this process's only copy stream of the device; new streams would leave allocator blocks behind."""
        key = (os.getpid(), self.device.type, self.device.index)
        found = _copy_streams.get(key)
        if found is None:
            found = _copy_streams[key] = self._new_stream()
        return found

    def current_stream(self) -> Any:  # noqa: ANN401 - see above
        """Return the calling thread's current stream of the device."""
        return torch.accelerator.current_stream(self.device)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:  # noqa: ANN401 - see above
        """Make ``stream`` current inside a ``with`` block."""
        before = self.current_stream()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def new_event(self, *, timed: bool = False, awaited: bool = False) -> HostEvent:
        """Return a new event.

        Args:
            timed: the event takes part in ``elapsed_time``.
            awaited: the host waits for the event. On CUDA the waiting thread then sleeps and does not spin.
        """
        del awaited  # torch.Event cannot sleep
        return torch.Event(self.device, enable_timing=timed)

    def enter_thread(self) -> None:
        """Make the device current in the calling thread."""
        torch.accelerator.set_device_index(self.device.index)

    def _new_stream(self) -> Any:  # noqa: ANN401 - see above
        return torch.Stream(self.device)


class CudaStreams(DeviceStreams):
    """The same of CUDA and ROCm, from ``torch.cuda``: a host that waits for ``torch.Event`` spins."""

    def current_stream(self) -> Any:  # noqa: ANN401 - see above
        """Return the calling thread's current stream of the device."""
        return torch.cuda.current_stream(self.device)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:  # noqa: ANN401 - see above
        """Make ``stream`` current inside a ``with`` block."""
        with torch.cuda.stream(stream):
            yield

    def new_event(self, *, timed: bool = False, awaited: bool = False) -> HostEvent:
        """Return a new event; see ``DeviceStreams``."""
        made: HostEvent = torch.cuda.Event(enable_timing=timed, blocking=awaited)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return made

    def enter_thread(self) -> None:
        """Make the device current in the calling thread, and keep graph captures of other threads intact."""
        torch.cuda.set_device(self.device)
        capture.relax()

    def _new_stream(self) -> Any:  # noqa: ANN401 - see above
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def streams_of(device: torch.device) -> DeviceStreams | None:
    """Return the streams of a device; None: it has none, as the CPU and MPS.

    Raises:
        BadOptionError: this process has no such accelerator.
        FeedError: the process is a fork of one that used CUDA.
    """
    if device.type in _WITHOUT_STREAMS:
        return None
    if device.type == "cuda":
        _check_cuda(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        return CudaStreams(torch.device("cuda", index))
    if not hasattr(getattr(torch, "accelerator", None), "set_device_index"):
        return None  # an older torch: the copy thread waits for its copies
    current = current_accelerator()
    if current.type != device.type:
        raise BadOptionError(
            f"expected an accelerator of this machine for {device}, got {current}",
            object="device",
            hint="use device='cpu'",
        )
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    return DeviceStreams(torch.device(device.type, index))


def current_accelerator() -> torch.device:
    """Return the accelerator of this machine, else the CPU."""
    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is not None and accelerator.is_available():
        return torch.device(accelerator.current_accelerator())
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _check_cuda(device: torch.device) -> None:
    if torch.cuda._is_in_bad_fork():  # noqa: SLF001 - torch has no public name
        raise FeedError(
            "expected a process that may use CUDA, got a fork of one that had initialised CUDA",
            object="device",
            hint="start it with multiprocessing's 'spawn' or 'forkserver'",
        )
    if not torch.cuda.is_available():
        raise BadOptionError(f"expected a CUDA device for {device}, got none", object="device", hint="use device='cpu'")
