"""TensorFlow: a ``tf.data.Dataset`` over the batches of a source."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd_client.adapters.arrays import RaggedArrays, numpy_iterator
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def tensorflow_dataset(source: Iterable[Any]) -> Any:  # noqa: ANN401 - tf.data.Dataset
    """Return a ``tf.data.Dataset`` of the batches of ``source``, one epoch in each iteration.

    Dense fields become tensors, fields of one dimension with several lengths ``tf.RaggedTensor``, and texts string
    tensors. The first batch decides names, types and shapes. It is read when this function is called, and yielded
    first. TensorFlow reads ahead, so a position of the source counts batches that the model has not seen yet.

    Args:
        source: a ``FeedDataset``, a ``DeviceLoader`` on the CPU, or any iterable of mappings of tensors.

    Raises:
        BadOptionError: the source is empty, or a field has a type that TensorFlow cannot take.
    """
    tf = importlib.import_module("tensorflow")
    begun: list[Iterator[dict[str, Any]]] = [numpy_iterator(source)]
    first: list[dict[str, Any]] = [batch for batch in [next(begun[0], None)] if batch is not None]
    if not first:
        raise BadOptionError("expected at least one batch, got none", object="source")
    signature = {name: _spec(tf, name, value) for name, value in first[0].items()}

    def batches() -> Iterator[dict[str, Any]]:
        taken = [first.pop()] if first else []
        rest = begun.pop() if begun else numpy_iterator(source)
        for arrays in taken:
            yield _values(tf, arrays)
        for arrays in rest:
            yield _values(tf, arrays)

    make: Callable[..., Any] = tf.data.Dataset.from_generator
    return make(batches, output_signature=signature)


def _spec(tf: Any, name: str, value: Any) -> Any:  # noqa: ANN401 - TensorFlow's
    if isinstance(value, RaggedArrays) and value.shapes is None:
        return tf.RaggedTensorSpec((None, None), value.values.dtype, 1, row_splits_dtype=tf.int64)
    if isinstance(value, np.ndarray):
        return tf.TensorSpec((None, *value.shape[1:]) if value.ndim else (), value.dtype)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tf.TensorSpec((None,), tf.string)
    kind = "samples of several dimensions and shapes" if isinstance(value, RaggedArrays) else type(value).__name__
    raise BadOptionError(
        f"expected tensors, one-dimensional ragged fields or texts, got {kind}",
        object=name,
        hint="leave the field out of fields=, or resize or pad it in its recipe",
    )


def _values(tf: Any, arrays: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - TensorFlow's
    return {
        name: tf.RaggedTensor.from_row_splits(value.values[: value.offsets[-1]], value.offsets)
        if isinstance(value, RaggedArrays)
        else np.array(value, dtype=object)
        if isinstance(value, list)
        else value
        for name, value in arrays.items()
    }
