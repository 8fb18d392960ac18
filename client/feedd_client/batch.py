"""From payload and regions to user values: tensors that share the payload's memory, and lists."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from feedd_client._wire import feedd_pb2 as pb
from feedd_client.errors import ProtocolError
from feedd_client.values import Batch, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Payload: TypeAlias = NDArray[np.uint8]
    Decoder: TypeAlias = Callable[[Payload, pb.FieldRegion, int, int], Any]


VALID: Final = "__valid__"
_DECODED_TOGETHER: Final = 32  # enough to share the cost of a call, and few enough to stay in the processor's cache


class BatchDecoder:
    """Decodes batches of one session; decoders that depend only on the specs are chosen once.

    Tensors are views of the payload: their storage keeps the payload array alive until the last view dies.
    """

    def __init__(self, specs: Sequence[pb.TensorSpec]) -> None:
        """Prepare decoders for ``specs``.

        Raises:
            ProtocolError: a kind or dtype is unknown to this client.
        """
        self.names = tuple(spec.name for spec in specs)
        self._decoders = tuple((spec.name, _decoder(spec)) for spec in specs)
        self._numbers = tuple(_dtype(spec) if _is_number(spec) else None for spec in specs)

    def decode(
        self,
        payload: Payload,
        regions: Sequence[pb.FieldRegion],
        rows: int,
        at: int = 0,
        count: int = 1,
        batch_bytes: int = 0,
    ) -> list[Batch]:
        """Return ``count`` batches that are alike, with tensors that are views of ``payload``.

        Args:
            payload: the memory.
            regions: where the fields of each batch lie, from its first byte on.
            rows: rows of each batch.
            at: the first batch's first byte in the payload.
            count: number of batches.
            batch_bytes: bytes from one batch to the next.

        Raises:
            ProtocolError: a region lies outside the payload, or the number of regions and fields differ.
        """
        with self._checked(payload, regions):
            columns: list[Sequence[Any]] = []
            for (_, decode), number, region in zip(self._decoders, self._numbers, regions, strict=True):
                column = None
                if number is not None:
                    column = _split(number, payload, at + region.values_at, rows, count, batch_bytes)
                if column is None:
                    column = [decode(payload, region, rows, at + index * batch_bytes) for index in range(count)]
                columns.append(column)
            return [Batch(zip(self.names, values, strict=True)) for values in zip(*columns, strict=True)]

    @contextlib.contextmanager
    def _checked(self, payload: Payload, regions: Sequence[pb.FieldRegion]) -> Iterator[None]:
        if len(regions) != len(self._decoders):
            raise ProtocolError(f"expected {len(self._decoders)} regions, got {len(regions)}")
        try:
            yield
        except (TypeError, ValueError, IndexError) as error:  # numpy raises these for a region outside the payload
            raise ProtocolError(f"expected every field within {payload.shape[0]} bytes, got {error}") from None


class RunBatches:
    """The batches of a slot that differ in their steps only, often a single one. They are decoded as they are taken.

    It refers to no batch that was taken, and to the payload only while a batch is left to decode.

    Args:
        decoder: the session's.
        payload: the run's memory.
        message: describes each batch.
        at: the first batch's first byte in the payload.
        count: number of batches.
        batch_bytes: bytes from one batch to the next.
    """

    def __init__(
        self, decoder: BatchDecoder, payload: Payload, message: pb.Batch, at: int, count: int, batch_bytes: int
    ) -> None:
        self._decoder = decoder
        self._payload: Payload | None = payload
        self._message = message
        self._at = at
        self._undecoded_count = count
        self._batch_bytes = batch_bytes
        self._decoded: list[Batch] = []  # the last one first

    def __len__(self) -> int:
        return self._undecoded_count + len(self._decoded)

    def take(self) -> Batch:
        """Return the next batch; there must be one.

        Raises:
            ProtocolError: see ``BatchDecoder.decode``.
        """
        if not self._decoded:
            assert self._payload is not None
            count, message = min(self._undecoded_count, _DECODED_TOGETHER), self._message
            places = self._at, count, self._batch_bytes
            self._decoded = self._decoder.decode(self._payload, message.regions, message.rows, *places)
            self._decoded.reverse()
            self._undecoded_count -= count
            self._at += count * self._batch_bytes
            if not self._undecoded_count:
                self._payload = None
        return self._decoded.pop()


def first_time(message: pb.Batch) -> torch.Tensor:
    """Return bool[rows]: False for rows that repeat an earlier sample, to fill a step or replace a bad sample."""
    if not message.again:
        return torch.ones(message.rows, dtype=torch.bool, device="cpu")
    again = np.frombuffer(message.again, np.uint8)
    if again.shape[0] != message.rows:
        raise ProtocolError(f"expected a mark for each of {message.rows} rows, got {again.shape[0]}")
    return torch.from_numpy(again == 0)


def split_rows(batch: Batch, rows: int) -> list[dict[str, Any]]:
    """Return one dict per sample: tensors are views of their row; text and JSON fields hold the value itself."""
    columns = {name: list(column) for name, column in batch.items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(rows)]


def _decoder(spec: pb.TensorSpec) -> Decoder:
    if spec.kind == pb.TensorSpec.DENSE:
        return _dense(_dtype(spec), tuple(spec.shape))
    if spec.kind == pb.TensorSpec.RAGGED:
        return _ragged(_dtype(spec), spec.ndim)
    if spec.kind == pb.TensorSpec.PADDED:
        return _padded(_dtype(spec), spec.ndim)
    if spec.kind == pb.TensorSpec.TEXT:
        return _texts
    if spec.kind == pb.TensorSpec.JSON:
        return lambda payload, region, rows, at: [json.loads(text) for text in _texts(payload, region, rows, at)]
    raise ProtocolError(f"expected a known field kind, got {spec.kind}", object=spec.name)


def _is_number(spec: pb.TensorSpec) -> bool:
    return spec.kind == pb.TensorSpec.DENSE and not spec.shape


def _split(
    dtype: np.dtype[Any], payload: Payload, start: int, rows: int, count: int, batch_bytes: int
) -> Sequence[torch.Tensor] | None:
    """Return a field of batches at equal distances as views; one call makes all of them.

    ``unsafe_split_with_sizes`` returns tensors that share memory, but are no views of each other for autograd. Changing
    one in place never makes the others require a gradient.

    Returns:
        None: the distance is no multiple of the dtype's size.
    """
    step, rest = divmod(batch_bytes, dtype.itemsize)
    if rest or rows > step:
        return None
    flat = torch.from_numpy(np.ndarray(((count - 1) * step + rows,), dtype, payload, start))
    return torch.unsafe_split_with_sizes(flat, [*[rows, step - rows] * (count - 1), rows])[::2]


def _dtype(spec: pb.TensorSpec) -> np.dtype[Any]:
    try:
        dtype = np.dtype(spec.dtype)
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        raise ProtocolError(f"expected a dtype that torch has, got {spec.dtype!r}", object=spec.name) from None
    return dtype


def _dense(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Decoder:
    def decode(payload: Payload, region: pb.FieldRegion, rows: int, at: int) -> torch.Tensor:
        return torch.from_numpy(np.ndarray((rows, *shape), dtype, payload, at + region.values_at))

    return decode


def _padded(dtype: np.dtype[Any], ndim: int) -> Decoder:
    def decode(payload: Payload, region: pb.FieldRegion, rows: int, at: int) -> torch.Tensor:
        if len(region.dims) != ndim:
            raise ValueError(f"{len(region.dims)} dimensions of {ndim}")
        return torch.from_numpy(np.ndarray((rows, *region.dims), dtype, payload, at + region.values_at))

    return decode


def _ragged(dtype: np.dtype[Any], ndim: int) -> Decoder:
    def decode(payload: Payload, region: pb.FieldRegion, rows: int, at: int) -> Ragged:
        count = region.values_bytes // dtype.itemsize
        values = np.ndarray((count,), dtype, payload, at + region.values_at)
        offsets = np.ndarray((rows + 1,), np.int64, payload, at + region.offsets_at)
        if offsets[0] != 0 or offsets[-1] > count:
            raise ValueError(f"offsets [{offsets[0]}, {offsets[-1]}] over {count} elements")
        shapes = None
        if ndim > 1:
            shapes = torch.from_numpy(np.ndarray((rows, ndim), np.int64, payload, at + region.shapes_at))
        return Ragged(torch.from_numpy(values), torch.from_numpy(offsets), shapes)

    return decode


def _texts(payload: Payload, region: pb.FieldRegion, rows: int, at: int) -> list[str]:
    blob = np.ndarray((region.values_bytes,), np.uint8, payload, at + region.values_at).tobytes()
    ends = np.ndarray((rows + 1,), np.int64, payload, at + region.offsets_at).tolist()
    if rows and (ends[0] != 0 or ends[-1] > len(blob)):
        raise ValueError(f"offsets [{ends[0]}, {ends[-1]}] over {len(blob)} bytes")
    return [blob[start:end].decode("utf-8", "replace") for start, end in itertools.pairwise(ends)]
