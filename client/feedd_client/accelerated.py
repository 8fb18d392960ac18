"""Accelerate and Hugging Face's Trainer: each process iterates its own stream, which feedd has already sharded.

``Accelerator.prepare`` takes an ``IterableDataset`` for the whole data. It distributes one process's stream to all
processes, or lets every process read its stream and drop most of it. Both would silently train on a part of the data.
So this module tells ``prepare`` that there is a single process. If a stream is distributed all the same, every process
raises an error.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_log: Final = logging.getLogger("feedd_client")
_MODULE: Final = "accelerate.accelerator"
_FUNCTION: Final = "prepare_data_loader"
_DEALERS: Final = ("DataLoaderDispatcher", "IterableDatasetShard")
_LIBRARIES: Final = ("accelerate", "transformers")
_FRAMES_MAX: Final = 16  # frames to search upwards from our __iter__ or set_epoch
_REPLICATED: Final = ("tp", "cp", "sp")  # dimensions of a device mesh whose ranks read the same batches
_WRITE: Final = "iterate DeviceLoader(dataset, device=accelerator.device), without prepare()"


def adapt(kind: type) -> None:
    """Make ``Accelerator.prepare`` leave streams of ``kind`` unchanged, if accelerate was imported."""
    module = sys.modules.get(_MODULE)
    prepare: Callable[..., Any] | None = getattr(module, _FUNCTION, None)
    if prepare is None or hasattr(prepare, "feedd_adapted"):
        return

    @functools.wraps(prepare)
    def prepared(dataloader: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - accelerate's own
        dataset = getattr(dataloader, "dataset", None)
        if isinstance(dataset, kind):
            _check(dataset, dataloader, options)
            # pretend one process: batching and moving to the device stay, distributing is left out
            options.update(num_processes=1, process_index=0, dispatch_batches=False, torch_device_mesh=None)
        return prepare(dataloader, *args, **options)

    prepared.feedd_adapted = True  # type: ignore[attr-defined]  # so that it is done once
    setattr(module, _FUNCTION, prepared)


def _check(dataset: Any, dataloader: Any, options: dict[str, Any]) -> None:  # noqa: ANN401 - of kinds not known here
    """Refuse options that would train on other data than the user meant.

    Raises:
        BadOptionError: such an option was found; every process raises the same error.
    """
    if options.get("split_batches"):
        raise BadOptionError(
            "expected every process to read its own batches, got split_batches=True",
            object="split_batches",
            hint="leave it out, and set batch_size to the batch size of one process",
        )
    if dataloader.batch_size is not None and dataset.yields_batches:
        raise BadOptionError(
            f"expected single samples for a DataLoader with batch_size={dataloader.batch_size}, got a FeedDataset that"
            " makes batches",
            object="batch_size",
            hint="write FeedDataset(..., batch_size=None) for Trainer(train_dataset=...), or"
            " DataLoader(dataset, batch_size=None)",
        )
    mesh = options.get("torch_device_mesh")
    same = 1
    if mesh is not None:
        for name in mesh.mesh_dim_names or ():
            same *= mesh[name].size() if name in _REPLICATED else 1
    if same not in {1, dataset.replicas}:
        raise BadOptionError(
            f"expected replicas={same}, the ranks of the device mesh that read the same, got {dataset.replicas}",
            object="replicas",
            hint=f"write FeedDataset(..., replicas={same})",
        )


def refuse_dealing() -> None:
    """Check that no library distributes this process's stream to several processes.

    A library that does so begins a pass on every process, so all processes see the error.

    Raises:
        BadOptionError: a library distributes the stream; the hint says what to write.
    """
    if not any(library in sys.modules for library in _LIBRARIES):
        return
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to see the caller
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        # Look only at the libraries' own frames: reading f_locals keeps a frame's variables alive, and the trainer's
        # frames hold datasets and batches.
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        dealer = frame.f_locals.get("self") if library in _LIBRARIES else None
        name = type(dealer).__name__
        if name in _DEALERS and _process_count(dealer) > 1:
            raise BadOptionError(
                f"expected every process to iterate its own stream, got {library}'s {name}, which distributes one to"
                f" {_process_count(dealer)} processes: each would train on a part of the data",
                object=name,
                hint=f"{_WRITE}; or make the FeedDataset after accelerate is imported, and use Accelerator.prepare",
            )
        frame = frame.f_back


def _process_count(dealer: Any) -> int:  # noqa: ANN401 - of accelerate or transformers
    state = getattr(dealer, "state", None)
    return int(getattr(dealer, "num_processes", getattr(state, "num_processes", 1)))
