"""NumPy: batches whose arrays share the memory of the batch, and keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from feedd_client.containers import map_leaves
from feedd_client.errors import BadOptionError
from feedd_client.values import Ragged

if TYPE_CHECKING:
    import torch


class RaggedArrays(NamedTuple):
    """A ``Ragged`` as arrays of another library.

    Attributes:
        values: all elements, samples back to back.
        offsets: ``[rows + 1]``, in elements.
        shapes: ``[rows, ndim]`` for samples of more than one dimension, else None.
    """

    values: Any
    offsets: Any
    shapes: Any = None


def numpy_iterator(source: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the batches of ``source`` as dicts of NumPy arrays. Texts stay lists.

    An array shares the memory of its batch and keeps it: kept arrays stay right. Nothing is copied.

    Args:
        source: a ``FeedDataset``, a ``DeviceLoader`` on the CPU, or any iterable of mappings of tensors.

    Raises:
        BadOptionError: a tensor is on a GPU, or has a dtype that NumPy has not.
    """
    for batch in source:
        yield converted(batch, to_numpy)


def converted(batch: Any, change: Callable[[torch.Tensor], Any]) -> dict[str, Any]:  # noqa: ANN401 - of the source
    """Return a batch as a dict, with every tensor changed and each ``Ragged`` as ``RaggedArrays``.

    Raises:
        BadOptionError: the batch is no mapping, or holds an unsupported type.
    """
    if not isinstance(batch, Mapping):
        raise BadOptionError(f"expected mappings of fields, got {type(batch).__name__}", object="batch")
    return {name: _converted(value, change) for name, value in batch.items()}


def to_numpy(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - an array, whose dtype the tensor decides
    """Return an array that shares the tensor's memory, and keeps it.

    Raises:
        BadOptionError: the tensor is on a GPU, or its dtype is none of NumPy's.
    """
    try:
        return tensor.detach().numpy()
    except TypeError:
        raise BadOptionError(
            f"expected a CPU tensor of a dtype that NumPy has, got {tensor.dtype} on {tensor.device}",
            object="batch",
            hint="use dlpack_iterator for tensors on a GPU, and Cast(torch.float32) for bfloat16",
        ) from None


def _converted(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:  # noqa: ANN401 - see above
    if isinstance(value, Ragged):
        parts = (value.values, value.offsets, value.shapes)
        return RaggedArrays(*(None if part is None else change(part) for part in parts))
    return map_leaves(value, change)
