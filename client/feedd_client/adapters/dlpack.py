"""DLPack and CuPy: tensors handed over on the stream of whoever uses them."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import torch

from feedd_client.adapters.arrays import converted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

_END: Any = object()


def dlpack_iterator(
    source: Iterable[Any], convert: Callable[[torch.Tensor], Any], *, stream: Callable[[], int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the batches of ``source`` as dicts of another library's arrays, without copying.

    An array keeps the memory of its tensor. With ``stream``, a ``DeviceLoader`` hands each batch over to that stream:
    the stream waits for the copy, and the memory is not used again before the stream's work on it is done.

    Args:
        source: a ``DeviceLoader``, a ``FeedDataset``, or any iterable of mappings of tensors.
        convert: makes an array of a tensor, such as ``cupy.from_dlpack`` or ``jax.dlpack.from_dlpack``.
        stream: returns the address of the CUDA stream on which the library works now. None: the library works on
            torch's current stream, or on the CPU.
    """
    batches = iter(source)
    while True:
        with _current(stream):
            batch = next(batches, _END)
            if batch is _END:
                return
            arrays = converted(batch, convert)
        del batch
        yield arrays
        del arrays


def cupy_iterator(source: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the batches of a ``DeviceLoader`` on a GPU as dicts of CuPy arrays, for CuPy's current stream.

    Args:
        source: a ``DeviceLoader``, or any iterable of mappings of tensors on a GPU.
    """
    cupy = importlib.import_module("cupy")
    return dlpack_iterator(source, cupy.from_dlpack, stream=lambda: int(cupy.cuda.get_current_stream().ptr))


def _current(stream: Callable[[], int] | None) -> AbstractContextManager[Any]:
    if stream is None:
        return contextlib.nullcontext()
    found: AbstractContextManager[Any] = torch.cuda.stream(torch.cuda.ExternalStream(stream()))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found
