"""One field of a request: locates its rows, and decodes each row to its place."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.codecs.number import NumberCodec, read_int
from feedd.errors import BadSample, Internal
from feedd.formats.npy_header import HEAD_BYTES_MAX
from feedd.recipe.label_recipes import NUMBER_BYTES, are_numbers, number_of
from feedd.recipe.padding import Padding, parse_pad
from feedd.values import FieldKind
from feedd.workers.bulk import windows
from feedd.workers.fixed_width import LARGE_BYTES, StoredCodec

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    from feedd.flow.file_pipe import FilePipe
    from feedd.protocols import SampleCodec
    from feedd.workers.messages import FieldMessage
    from feedd.workers.shards import Shards


_ADJACENT_LEAST: Final = 2  # rows of an array, on average, if arrays are to be made for several rows
_SHORT_BYTES: Final = 32  # longer than any number that is a count or a label


class Field:
    """One field of a request, ready to be decoded row by row.

    Args:
        message: the field in the request.
        codec: decodes its rows.
    """

    def __init__(self, message: FieldMessage, codec: SampleCodec) -> None:
        spec = codec.spec(message.name)
        start = np.frombuffer(message.start, np.int64)
        self._codec = codec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._dense = spec.shape if spec.kind is FieldKind.DENSE else None
        self._file_no: list[int] = np.frombuffer(message.file_no, np.int32).tolist()
        self._start: list[int] = start.tolist()
        self._size: list[int] = np.frombuffer(message.size, np.int64).tolist()
        self._out_at: list[int] = np.frombuffer(message.out_at, np.int64).tolist()
        self._has_numbers = bool(are_numbers(start).any())
        shape = np.frombuffer(message.shape, np.int64).reshape(-1, max(1, spec.ndim))
        self._shape: list[list[int]] = shape.tolist()
        pad = parse_pad(message.pad)
        self._padding = None if pad is None or not message.dims else Padding(pad, message.dims, self._dtype)
        self._targets: list[NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self._size)

    def data(self, row: int, shards: Shards) -> memoryview:
        """Return the bytes of a row, valid until the next call.

        Raises:
            BadSample: the sample lacks the field, or lies outside its shard.
            CacheUnavailable: the shard cannot be read.
        """
        size, start = self._size[row], self._start[row]
        if size < 0:
            raise BadSample("expected the field, got a sample without it")
        number = number_of(start) if self._has_numbers else None
        if number is not None:
            data = memoryview(number.to_bytes(NUMBER_BYTES, "little", signed=True))
        else:
            data = shards[self._file_no[row]].read(start, size)
        if len(data) != size:
            raise BadSample(f"expected {size} bytes at byte {start} of the shard, got {len(data)}")
        return data

    def lay(self, out: mmap.mmap, slot_at: int) -> None:
        """Prepare the rows' places in ``out``: of each batch, adjacent rows become one array, created once."""
        shape = self._dense
        if not shape or self._padding is not None or len(self) < 2:
            return
        row_bytes = math.prod(shape) * self._dtype.itemsize
        if min(self._out_at) + slot_at < 0 or max(self._out_at) + slot_at > len(out) - row_bytes:
            return  # reported when the row is decoded
        edges = [0, *(np.flatnonzero(np.diff(self._out_at) != row_bytes) + 1).tolist(), len(self)]
        if len(self) < _ADJACENT_LEAST * (len(edges) - 1):
            return
        self._targets = [
            row
            for low, high in itertools.pairwise(edges)
            for row in np.ndarray((high - low, *shape), self._dtype, out, slot_at + self._out_at[low])
        ]

    def numbers(self, shards: Shards, out: mmap.mmap, slot_at: int) -> NDArray[np.bool_] | None:
        """Decode numbers that are written as text, as most labels are; row by row this costs several times as much.

        Returns:
            bool[rows], which rows are done. The others are bad, long, or outside the arena, and must be decoded one by
            one, which reports errors. None: the field holds no numbers in text.

        Raises:
            CacheUnavailable: a shard cannot be read.
        """
        read = self._codec.read_text if isinstance(self._codec, NumberCodec) else None
        if read is None or self._has_numbers:
            return None
        item_bytes = self._dtype.itemsize
        out_at = np.array(self._out_at, np.int64) + slot_at
        inside = ((out_at >= 0) & (out_at <= len(out) - item_bytes)).tolist()
        values: list[float] = []
        done = np.zeros(len(self), np.bool_)
        for row, size in enumerate(self._size):
            if inside[row] and 0 < size <= _SHORT_BYTES:
                with suppress(BadSample):
                    values.append(read(shards[self._file_no[row]].text(self._start[row], size)))
                    done[row] = True
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinity, as in IEEE
            numbers = np.array(values, "int64" if read is read_int else "float64").astype(self._dtype)
        windows(out, item_bytes)[out_at[done]] = numbers.view(f"V{item_bytes}")
        return done

    def copy_large(
        self, shards: Shards, pipe: FilePipe, out: tuple[int, int], slot_at: int
    ) -> NDArray[np.bool_] | None:
        """Copy the large rows that lie in their shards as in the batch.

        Args:
            shards: the shards.
            pipe: copies.
            out: descriptor of the arena, and its size.
            slot_at: where the slot begins in the arena.

        Returns:
            bool[rows], which rows are done; the others must be decoded. None: the codec's samples are never stored so.

        Raises:
            CacheUnavailable: a shard cannot be read.
        """
        codec = self._codec
        if not isinstance(codec, StoredCodec) or self._padding is not None:
            return None
        fd, arena_bytes = out
        done = np.zeros(len(self), np.bool_)
        for row, size in enumerate(self._size):
            shard, start, at = shards[self._file_no[row]], self._start[row], slot_at + self._out_at[row]
            if size < LARGE_BYTES or not 0 <= start <= shard.size_bytes - size:
                continue
            shape = self._shape[row] if self._dense is None else self._dense
            skipped = codec.stored_at(memoryview(shard.text(start, min(size, HEAD_BYTES_MAX))), size, shape)
            if skipped is not None and 0 <= at <= arena_bytes - (size - skipped):
                shard.copy(pipe, start + skipped, size - skipped, (fd, at))
                done[row] = True
        return done

    def decode(self, row: int, shards: Shards, out: mmap.mmap, slot_at: int, seed: int) -> None:
        """Decode one row into ``out``.

        Raises:
            BadSample: the codec cannot decode the row.
            CacheUnavailable: its shard cannot be read.
            Internal: the row lies outside the arena.
        """
        data = self.data(row, shards)
        if self._targets is not None:
            self._codec.decode(data, self._targets[row], seed)
            return
        shape = self._shape[row] if self._dense is None else self._dense
        if self._dense is None and min(shape) < 0:
            measured = list(self._codec.measure(data))
            raise BadSample(f"expected a shape that could be measured, got {measured} only when decoding")
        try:
            room = shape if self._padding is None else self._padding.dims
            target: np.ndarray[Any, Any] = np.ndarray(room, self._dtype, out, slot_at + self._out_at[row])
        except (TypeError, ValueError) as error:
            raise Internal(f"expected row {row} to lie in the arena, got {error}", stage="decode") from error
        if self._padding is None:
            self._codec.decode(data, target, seed)
        else:
            self._padding.decode(self._codec, data, list(shape), target, seed)
