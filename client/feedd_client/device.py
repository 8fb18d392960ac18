"""DeviceLoader: batches on the device; the next batches are copied while the trainer computes on the current batch.

A separate thread takes host batches, copies them on the process's only copy stream, runs the transforms there and
records an event. The trainer's stream waits for that event on the device, not on the host. A slot returns to the daemon
only after its copy has completed, because CUDA protects neither shared memory nor memory that feedd registered.
Devices without streams have the same thread, which waits for its copies.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Self

import torch

from feedd_client.containers import leaves
from feedd_client.copier import Copier, HostCopier, HostFields
from feedd_client.dataset import FeedDataset
from feedd_client.errors import BadOptionError, StateError
from feedd_client.iterator import FeedIterator
from feedd_client.lane import CopyLane, DevicePass
from feedd_client.normalize import Normalize
from feedd_client.outputs import Outputs, StaticOutputs
from feedd_client.progress import Progress, seeding_of, stateful_of
from feedd_client.streams import current_accelerator, streams_of
from feedd_client.transforms import Generators, Pipeline, Transform, TransformContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from feedd_client.copier import BatchCopier
    from feedd_client.streams import DeviceStreams

__all__ = ["DeviceLoader", "Normalize", "Transform", "TransformContext"]


class DeviceLoader:
    """Yields the batches of ``source`` on ``device``; the yielded batches belong to the trainer.

    A thread copies and transforms the next batches while the trainer computes. On the CPU, a loader without transforms
    has no thread. A batch may be a dict, mapping, list, tuple, namedtuple, dataclass or ``Ragged`` of tensors, nested
    to any depth. A batch may also hold objects with their own ``to``, ``pin_memory`` and ``record_stream``. Other types
    are an error.

    A transform is called as ``transform(batch)``. A transform with a required second argument, or with an argument
    called ``context``, is called as ``transform(batch, context)`` (see ``TransformContext``). Draw random numbers from
    ``context.generator``: torch's global generator belongs to the trainer, and the copy thread must not draw from it.

    Args:
        source: a ``FeedDataset``, or any iterable of batches such as a torch ``DataLoader`` over one.
        device: "cuda", "cuda:1", "xpu", "mps", "cpu", ...; None: the current accelerator, else the CPU.
        transforms: one callable, or several that are called in turn, on the device and on the copy stream.
        device_prefetch: batches on the device in addition to the trainer's current batch. One is ready, and the others
            are being copied. This limit holds however far the trainer's host runs ahead of the device.
        on_host: fields that stay on the CPU, for transforms that need them there.
        decode: decoders of encoded fields, by name. A decoder is called as ``decoder(field, device)`` in the copy
            thread, before the transforms. It gets the ``Ragged`` in shared memory itself, and returns what the field
            becomes. On a GPU, it must read the memory on the current stream, or before it returns.
        channels_last: store the images of transformed batches (floating point, 4 dimensions) in channels-last order.
        static: copy each batch to tensors with addresses that never change, as CUDA graphs need. A batch is then valid
            until the next one. Batches must have the first batch's shapes, or fewer rows.

    Raises:
        BadOptionError: an argument is invalid.
    """

    def __init__(
        self,
        source: FeedDataset | Iterable[Any],
        device: str | torch.device | int | None = None,
        transforms: Transform | Iterable[Transform] = (),
        *,
        device_prefetch: int = 2,
        on_host: Sequence[str] = (),
        decode: Mapping[str, Callable[..., Any]] | None = None,
        channels_last: bool = False,
        static: bool = False,
    ) -> None:
        if device_prefetch < 1:
            raise BadOptionError(f"expected at least 1, got {device_prefetch}", object="device_prefetch")
        self._source = source
        self._device = None if device is None else torch.device(device)
        self._pipeline = Pipeline(transforms, channels_last=channels_last)
        self._prefetch = device_prefetch
        self._host_fields = HostFields((on_host,) if isinstance(on_host, str) else tuple(on_host), dict(decode or {}))
        self._static = static
        self._statics: tuple[str, StaticOutputs] | None = None  # of all passes, so that epochs share addresses
        self._progress = Progress(source)
        self._passes: weakref.WeakSet[Any] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Any]:
        device = current_accelerator() if self._device is None else self._device
        busy = self._pipeline or self._host_fields or self._static or device.type != "cpu"
        begun = self._device_pass(device) if busy else self._plain_pass()
        self._passes.add(begun)
        return begun

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # a source without len() raises the right TypeError

    def __repr__(self) -> str:
        device = "the current accelerator" if self._device is None else str(self._device)
        source = repr(self._source) if isinstance(self._source, FeedDataset) else type(self._source).__name__
        if isinstance(self.dataset, FeedDataset) and self.dataset is not self._source:
            source = f"{source}({self.dataset!r})"
        transforms = " ".join(repr(self._pipeline).split())  # modules show themselves on several lines
        return f"DeviceLoader({source}, {device}, {transforms}, device_prefetch={self._prefetch})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_passes"} | {"_statics": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._passes = weakref.WeakSet()

    @property
    def dataset(self) -> Any:  # noqa: ANN401 - depends on the source
        """The source's dataset, or the source itself."""
        return getattr(self._source, "dataset", self._source)

    @property
    def batch_size(self) -> int | None:
        """Samples per batch, if the source or its dataset has a ``batch_size``."""
        found: int | None = getattr(self._source, "batch_size", None)
        return getattr(self.dataset, "batch_size", None) if found is None else found

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the transforms' random numbers, and for the source or its dataset if they accept it."""
        for one in (self._source, self.dataset):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
                break
        self._progress.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the source's resume position. Only batches that the trainer took count, not prefetched ones.

        Empty if neither the source nor its dataset keeps a position; a resumed run then begins its epoch again.
        """
        if not isinstance(self._source, FeedDataset) and self._progress.state is not None:
            return self._progress.state
        stateful = stateful_of(self._source)
        return {} if stateful is None else stateful.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Pass ``state`` to the source or to its dataset, whichever keeps the position.

        Raises:
            StateError: neither keeps a position, and the state is not empty.
        """
        stateful = stateful_of(self._source)
        if stateful is not None:
            self._progress.state = None
            stateful.load_state_dict(state)
        elif state:
            raise StateError(
                f"expected a source with load_state_dict, got {type(self._source).__name__}",
                object="state",
                hint="give DeviceLoader the FeedDataset itself, or torchdata's StatefulDataLoader",
            )

    def stats(self) -> dict[str, Any]:
        """Return the dataset's counters, with ``batches`` and ``wait_s`` as the trainer saw them.

        ``wait_s`` is the time that the trainer's loop waited for a batch, also if it ran ahead of the device.
        ``host_wait_s`` is the time that the copy thread waited for the daemon: divided by wall time, the share of time
        limited by input. ``register_s`` is the time to register shared memory with CUDA. ``h2d_bytes`` were copied to
        the device, in ``h2d_s`` of device time; objects that move themselves are not counted.
        """
        inner = self._source.stats() if isinstance(self._source, FeedDataset) else {}
        progress = self._progress
        own = {"batches": progress.batches, "wait_s": progress.wait_s, "host_wait_s": inner.get("wait_s", 0.0)}
        copies = {"register_s": progress.register_s, "h2d_bytes": progress.copied_bytes, "h2d_s": progress.copy_s}
        return {**inner, **own, **copies}

    def close(self) -> None:
        """End all running passes and close the source, which may be iterated again."""
        for begun in list(self._passes):
            begun.close()
        if isinstance(self._source, FeedDataset):
            self._source.close()

    def _plain_pass(self) -> Iterator[Any]:
        """Yield batches in the trainer's thread: on the CPU, without transforms, no work is left for another."""
        source, progress = self._source, self._progress
        batches = iter(source.start_pass(copy=True) if isinstance(source, FeedDataset) else source)
        if isinstance(batches, FeedIterator):
            batches.auto_commit = False
            batches.times.device = "cpu"
        positions = progress.positions(batches)
        while True:
            began_s = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                progress.finished(batches)
                return
            wait_s = time.perf_counter() - began_s
            if isinstance(batches, FeedIterator):
                batches.times.took(began_s, wait_s)
            _, position = positions()
            for _ in leaves(batch):  # raises for the types that a GPU would refuse too
                pass
            progress.took(position, wait_s)
            yield batch

    def _device_pass(self, device: torch.device) -> DevicePass:
        streams, source = streams_of(device), self._source
        device = device if streams is None else streams.device
        private = device.type == "cpu" and not self._host_fields
        # Opened here, so that ranks compare their data in the trainer's thread, where its other collectives run.
        batches: Iterator[Any]
        if isinstance(source, FeedDataset):
            batches = source.start_pass(copy=private, pinned=device.type == "cuda")
        else:
            batches, private = iter(source), True
        generators = Generators(device, *seeding_of(batches))
        copier: BatchCopier
        if streams is None:
            copier = HostCopier(device, self._pipeline, generators, self._host_fields, leased=not private)
        else:
            copier = Copier(streams, self._pipeline, generators, self._host_fields, self._progress.registered)
        if isinstance(batches, FeedIterator):
            batches.times.device = str(device)
            if isinstance(copier, Copier):
                copier.register(batches.mapping)
                batches.times.unpinned = device.type == "cuda" and not copier.reads_slots
        lane = CopyLane(batches, copier, self._prefetch, self._progress)
        return DevicePass(self._progress, lane, self._outputs(streams, device))

    def _outputs(self, streams: DeviceStreams | None, device: torch.device) -> Outputs:
        if not self._static:
            return Outputs(streams)
        if self._statics is None or self._statics[0] != str(device):
            self._statics = str(device), StaticOutputs(streams)
        return self._statics[1]
