"""JAX: batches on devices, split by rows between them, with the next ones on their way."""

from __future__ import annotations

import importlib
from collections import deque
from typing import TYPE_CHECKING, Any

from feedd_client.adapters.arrays import converted, to_numpy
from feedd_client.adapters.lookahead import Lookahead
from feedd_client.errors import BadOptionError
from feedd_client.values import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch


def jax_iterator(
    source: Iterable[Any],
    *,
    devices: Sequence[Any] | None = None,
    sharding: Any = None,  # noqa: ANN401 - JAX's
    prefetch: int = 2,
) -> Iterator[dict[str, Any]]:
    """Yield the batches of ``source`` as dicts of ``jax.Array``. Texts stay lists.

    Arrays keep the memory that they were made of: kept batches stay right. ``dataset.state_dict()`` counts the batches
    that were yielded, and not those on their way. As everywhere in JAX, int64 becomes int32 unless
    ``jax_enable_x64`` is set.

    Args:
        source: a ``FeedDataset``; or any iterable of mappings of tensors, on the CPU or on a GPU.
        devices: devices that share each batch by rows; None: the first local device.
        sharding: a ``jax.sharding.Sharding`` instead. In a run of several processes, each process gives the rows of
            its own devices.
        prefetch: batches on their way to the devices, the yielded one included.

    Raises:
        BadOptionError: an argument is invalid, the rows of a batch are no multiple of the number of devices, or a
            ragged field should be split.
    """
    jax = importlib.import_module("jax")
    if prefetch < 1 or (devices is not None and sharding is not None):
        raise BadOptionError(
            f"expected prefetch of at least 1, and devices or sharding, got prefetch={prefetch}, devices={devices}"
            f" and sharding={sharding}",
            object="jax_iterator",
        )
    if sharding is None and devices is not None:
        mesh = jax.sharding.Mesh(list(devices), ("batch",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return _arrays(Lookahead(source, prefetch), _putter(jax, sharding), split=sharding is not None)


def _arrays(batches: Lookahead, put: Callable[[torch.Tensor], Any], *, split: bool) -> Iterator[dict[str, Any]]:
    waiting: deque[tuple[dict[str, Any], object]] = deque()
    over = False
    try:
        while True:
            while not over and len(waiting) < batches.depth:
                try:
                    batch, position = batches.read()
                except StopIteration:
                    over = True
                    break
                if split:
                    _refuse_ragged(batch)
                waiting.append((converted(batch, put), position))
                del batch
            if not waiting:
                batches.finished()
                return
            arrays, position = waiting.popleft()
            batches.took(position)
            yield arrays
            del arrays
    finally:
        batches.close()


def _putter(jax: Any, sharding: Any) -> Callable[[torch.Tensor], Any]:  # noqa: ANN401 - JAX's
    def put(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - see above
        if not tensor.is_cpu:
            found = jax.dlpack.from_dlpack(tensor)
            return found if sharding is None else jax.device_put(found, sharding)
        array = to_numpy(tensor)
        if sharding is None:
            return jax.device_put(array)
        count = len(sharding.addressable_devices)
        if array.ndim == 0 or array.shape[0] % count:
            raise BadOptionError(
                f"expected rows that {count} devices share equally, got {list(array.shape)}",
                object="sharding",
                hint="choose a batch_size that is a multiple, and uneven='drop' or 'pad'",
            )
        if jax.process_count() > 1:
            return jax.make_array_from_process_local_data(sharding, array)
        return jax.device_put(array, sharding)

    return put


def _refuse_ragged(batch: Any) -> None:  # noqa: ANN401 - of the source
    for name, value in batch.items():
        if isinstance(value, Ragged):
            raise BadOptionError(
                "expected fields that can be split by rows, got a Ragged",
                object=name,
                hint="pad the field in its recipe",
            )
