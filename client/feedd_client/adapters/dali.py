"""NVIDIA DALI: batches of a source for ``fn.external_source``."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from feedd_client.adapters.arrays import RaggedArrays, converted, to_numpy
from feedd_client.adapters.lookahead import Lookahead
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEFAULT_AHEAD = 4  # batches that DALI may hold: prefetch_queue_depth is 2 for each of its stages


class DaliSource:
    """Gives ``fn.external_source`` a tuple of fields for each batch; each iteration is an epoch.

    A ragged field, such as ``"image:raw"``, becomes a list with one array for each sample. Dense fields become arrays
    ``[batch, ...]``. The arrays are shared memory itself: DALI copies them when it takes the batch.
    With ``no_copy=True``, DALI reads them later: set ``held_batches`` to the number of batches in the pipeline.

    Args:
        source: a ``FeedDataset``, or any iterable of mappings of tensors.
        fields: names of the fields, in the order of the pipeline's inputs.
        held_batches: batches that stay valid after DALI asks for further ones.
    """

    def __init__(self, source: Iterable[Any], fields: Sequence[str], *, held_batches: int = 0) -> None:
        self._source = source
        self._fields = tuple(fields)
        self._held_batches = held_batches
        self._passes: deque[tuple[Lookahead, deque[object]]] = deque()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._tuples()  # a generator: DALI asks for the next epoch's iterator long before its first batch

    def taken(self, outputs: Iterable[Any]) -> Iterator[Any]:
        """Yield the outputs of a DALI iterator over one epoch, and count each batch as it is yielded.

        DALI reads ahead. Without this function, ``dataset.state_dict()`` stays where the epoch began.
        """
        for output in outputs:
            batches, positions = self._passes[0]
            batches.took(positions.popleft())
            yield output
        if self._passes:
            batches, _ = self._passes.popleft()
            if len(self._passes) <= 1:  # no later pass has been read to its end
                batches.finished()

    def _tuples(self) -> Iterator[tuple[Any, ...]]:
        for earlier, _ in self._passes:
            earlier.finished()  # read to its end, though the trainer has not seen all of it: the next epoch begins
        batches, positions = Lookahead(self._source, max(self._held_batches, _DEFAULT_AHEAD)), deque[object]()
        self._passes.append((batches, positions))
        held: deque[Any] = deque(maxlen=self._held_batches)
        while True:
            try:
                batch, position = batches.read()
            except StopIteration:
                return
            missing = [name for name in self._fields if name not in batch]
            if missing:
                raise BadOptionError(f"expected the fields {missing}, got {list(batch)}", object="fields")
            arrays = converted({name: batch[name] for name in self._fields}, to_numpy)
            positions.append(position)
            held.append(arrays)
            del batch
            yield tuple(_samples(value) for value in arrays.values())
            del arrays


def _samples(value: Any) -> Any:  # noqa: ANN401 - arrays, or a list of arrays
    if not isinstance(value, RaggedArrays):
        return value
    ends = value.offsets.tolist()
    rows = [value.values[start:end] for start, end in itertools.pairwise(ends)]
    return rows if value.shapes is None else [row.reshape(shape) for row, shape in zip(rows, value.shapes, strict=True)]
