"""From payload and regions to user values: tensors that share the payload's memory, and lists."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from feedd_client._wire import feedd_pb2 as pb
from feedd_client.errors import ProtocolError
from feedd_client.values import Batch, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Payload: TypeAlias = NDArray[np.uint8]
    Decoder: TypeAlias = Callable[[Payload, pb.FieldRegion, int, int], Any]


VALID: Final = "__valid__"


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

    def decode(self, payload: Payload, regions: Sequence[pb.FieldRegion], rows: int, at: int = 0) -> Batch:
        """Return the batch that begins at byte ``at``, with tensors that are views of ``payload``.

        Raises:
            ProtocolError: a region lies outside the payload, or the number of regions and fields differ.
        """
        if len(regions) != len(self._decoders):
            raise ProtocolError(f"expected {len(self._decoders)} regions, got {len(regions)}")
        try:
            return Batch(
                {
                    name: decode(payload, region, rows, at)
                    for (name, decode), region in zip(self._decoders, regions, strict=True)
                }
            )
        except (TypeError, ValueError, IndexError) as error:  # numpy raises these for a region outside the payload
            raise ProtocolError(f"expected every field within {payload.shape[0]} bytes, got {error}") from None


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
