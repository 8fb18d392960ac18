"""DeviceLoader: batches on the GPU, the next ones copied while this one computes.

A thread of its own takes host batches, copies them on the process' one copy stream, runs the transforms there and
records an event; the trainer's stream waits for that event on the device, not on the host. A slot goes back to the
daemon only after its copy has completed: CUDA protects neither shared memory nor memory we registered ourselves.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from feedd_client import lifetime
from feedd_client.copier import Copier, tensors_of
from feedd_client.dataset import FeedDataset
from feedd_client.errors import BadOptionError, FeedError
from feedd_client.iterator import FeedIterator
from feedd_client.normalize import Normalize
from feedd_client.session import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd_client import shm

__all__ = ["DeviceLoader", "Normalize", "Transform"]

Transform: TypeAlias = Callable[[Any], Any]
_JOIN_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class _Staged:
    """One batch on its way from the copy thread to the trainer; ``error`` or nothing at all ends the pass."""

    batch: Any = None
    ready: torch.cuda.Event | None = None
    position: Any = None
    error: BaseException | None = None
    over: bool = False


class DeviceLoader:
    """Yields the batches of ``dataset`` on ``device``; they are the trainer's to keep.

    On ``device="cpu"`` the same batches with the same numbers, without thread or streams.

    Args:
        dataset: a ``FeedDataset``, or any iterable of batches such as a torch ``DataLoader`` over one.
        device: "cuda", "cuda:1", "cpu", ...
        transforms: called in turn with each batch, on the device and on the copy stream; ``Normalize`` is one.
        depth: batches on the device besides the one the trainer has: one ready and ``depth - 1`` on their way.

    Raises:
        BadOptionError: an argument that cannot work.
    """

    def __init__(
        self,
        dataset: FeedDataset | Iterable[Any],
        device: str | torch.device | int = "cuda",
        transforms: Sequence[Transform] = (),
        depth: int = 2,
    ) -> None:
        if depth < 1:
            raise BadOptionError(f"expected a depth >= 1, got {depth}", object="depth")
        self._source = dataset
        self._device = torch.device(device)
        self._transforms = tuple(transforms)
        self._depth = depth
        self._copier: tuple[int, torch.device, Copier] | None = None
        self._source_state: dict[str, Any] | None = None
        self._batches = 0
        self._wait_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        if self._device.type == "cuda":
            return self._cuda_pass()
        return self._plain_pass()

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # a source without len() raises the TypeError it should

    def set_epoch(self, epoch: int) -> None:
        """Pass on to the dataset; also through a DataLoader."""
        source: Any = self._source
        (source if hasattr(source, "set_epoch") else source.dataset).set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the source's resume position, counting only batches the trainer took, not prefetched ones."""
        if not isinstance(self._source, FeedDataset) and self._source_state is not None:
            return self._source_state
        source: Any = self._source
        return source.state_dict()  # type: ignore[no-any-return]  # whatever the source calls its state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Pass on to the source."""
        source: Any = self._source
        self._source_state = None
        source.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Return the dataset's counters; ``batches`` and ``wait_s`` as the trainer saw them.

        ``wait_s`` over wall time is the share of the steps that waited for input; ``host_wait_s`` is what the
        copy thread waited for the daemon, ``register_s`` what registering shared memory with CUDA took.
        """
        inner = self._source.stats() if isinstance(self._source, FeedDataset) else {}
        own = {"batches": self._batches, "wait_s": self._wait_s, "host_wait_s": inner.get("wait_s", 0.0)}
        return {**inner, **own, "register_s": 0.0 if self._copier is None else self._copier[2].register_s}

    def took(self, staged_position: object, wait_s: float) -> None:
        """Take note that the trainer took a batch."""
        self._batches += 1
        self._wait_s += wait_s
        if isinstance(staged_position, Position) and isinstance(self._source, FeedDataset):
            self._source.commit(staged_position)
        elif isinstance(staged_position, dict):
            self._source_state = staged_position

    def finished(self, source: Iterator[Any]) -> None:
        """Take note that the trainer saw the end of the pass."""
        if isinstance(self._source, FeedDataset) and isinstance(source, FeedIterator) and source.end is not None:
            self._source.finish_epoch(*source.end)

    def _plain_pass(self) -> Iterator[Any]:
        source = self._source
        batches = iter(source.start_pass(copy=True) if isinstance(source, FeedDataset) else source)
        while True:
            began_s = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.took(_position(source, batches), time.perf_counter() - began_s)
            if self._device.type != "cpu":
                batch = {
                    name: value.to(self._device) if hasattr(value, "to") else value for name, value in batch.items()
                }
            for transform in self._transforms:
                batch = transform(batch)
            yield batch

    def _cuda_pass(self) -> Iterator[Any]:
        if not torch.cuda.is_available():
            raise BadOptionError(
                f"expected a CUDA device for {self._device}, got none", object="device", hint="use device='cpu'"
            )
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        device = torch.device("cuda", index)
        kept = self._copier
        if kept is None or kept[:2] != (os.getpid(), device):
            kept = self._copier = (os.getpid(), device, Copier(device, self._transforms))
        source = self._source
        # Opened here: ranks that must agree do so in the trainer's thread, where its other collectives run.
        batches = source.start_pass(copy=False, pinned=True) if isinstance(source, FeedDataset) else iter(source)
        if isinstance(batches, FeedIterator) and batches.mapping is not None:
            kept[2].register(batches.mapping)
        return DevicePass(self, CopyLane(source, batches, kept[2], self._depth), device)


class HostEvent(Protocol):
    """What a host can wait for."""

    def synchronize(self) -> None:
        """Wait until it happened."""


class BatchCopier(Protocol):
    """Brings batches to a device; ``Copier`` does it with CUDA."""

    def enter_thread(self) -> None:
        """Prepare the calling thread, from which all copies will come."""

    def copy(self, batch: object, mapping: shm.Mapping | None) -> tuple[object, HostEvent, torch.cuda.Event]:
        """Begin copying; return the device batch, "host memory was read", "ready for use"."""


class CopyLane:
    """The copy thread of one pass. Refers neither to loader nor to pass, so that dropping those ends it."""

    def __init__(self, source: object, batches: Iterator[Any], copier: BatchCopier, depth: int) -> None:
        self.batches = batches
        if isinstance(batches, FeedIterator):
            batches.auto_commit, batches.ahead = False, depth
        self.staged: queue.SimpleQueue[_Staged] = queue.SimpleQueue()
        self._source = source
        self._copier = copier
        # at most depth batches on the device: a place is claimed before a batch is copied
        self._places = threading.Semaphore(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedd-device-copy", daemon=True)
        self._thread.start()

    def taken(self, position: object) -> None:
        """Take note that the trainer took what is before ``position``, and let the thread copy one more."""
        if isinstance(self.batches, FeedIterator) and isinstance(position, Position):
            self.batches.took(position)
        self._places.release()

    def stop(self) -> None:
        """End the thread; what it had staged is dropped."""
        self._stop.set()
        self._places.release()
        if isinstance(self.batches, FeedIterator):
            self.batches.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._copier.enter_thread()
            while self._copy_next():
                pass
            self.staged.put(_Staged(over=True))
        except BaseException as error:  # noqa: BLE001 - it is the trainer's to see, whatever it is
            self.staged.put(_Staged(error=error, over=True))
        finally:
            if isinstance(self.batches, FeedIterator):
                self.batches.close()

    def _copy_next(self) -> bool:
        self._places.acquire()
        if self._stop.is_set():
            return False
        try:
            batch = next(self.batches)
        except StopIteration:
            return False
        mapping = self.batches.mapping if isinstance(self.batches, FeedIterator) else None
        moved, copied, ready = self._copier.copy(batch, mapping)
        position = _position(self._source, self.batches)
        self.staged.put(_Staged(moved, ready, position))
        # The host batch's memory is reused once the next one is asked for.
        copied.synchronize()
        return not self._stop.is_set()


class DevicePass(Iterator[Any]):
    """One pass of a DeviceLoader over a CUDA device."""

    def __init__(self, loader: DeviceLoader, lane: CopyLane, device: torch.device) -> None:
        self._loader = loader
        self._lane: CopyLane | None = lane
        self._device = device
        self._pid = os.getpid()
        lifetime.device_passes.add(self)

    def __next__(self) -> Any:  # noqa: ANN401 - what the source yields, moved
        lane = self._lane
        if lane is None:
            raise StopIteration
        if self._pid != os.getpid():
            raise FeedError("expected the process that began this pass, got a fork of it", hint="call iter() again")
        began_s = time.perf_counter()
        staged = lane.staged.get()
        wait_s = time.perf_counter() - began_s
        if staged.over:
            self.close()
            if staged.error is not None:
                raise staged.error
            self._loader.finished(lane.batches)
            raise StopIteration
        lane.taken(staged.position)
        # now, not at construction: the trainer may have switched streams
        stream = torch.cuda.current_stream(self._device)
        if staged.ready is not None:
            stream.wait_event(staged.ready)
        for tensor in tensors_of(staged.batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)  # allocated on the copy stream, to be freed by the trainer's
        self._loader.took(staged.position, wait_s)
        return staged.batch

    def close(self) -> None:
        """End the pass; idempotent."""
        lane, self._lane = self._lane, None
        if lane is not None and self._pid == os.getpid():
            lane.stop()

    def __del__(self) -> None:
        if hasattr(self, "_pid") and not sys.is_finalizing():
            self.close()


def _position(source: object, batches: Iterator[Any]) -> object:
    """Return what the trainer has taken once it takes the batch just fetched."""
    if isinstance(batches, FeedIterator):
        return batches.position
    return source.state_dict() if hasattr(source, "state_dict") else None
