"""Batches that lie in a file of the daemon's cache: fetches its descriptor, maps it, and makes tensors of it.

Each run of batches has a private mapping of its own. So a trainer may change its batches in place, nobody else sees
that, and a later run of the same file shows none of it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from feedd_client import shm
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd_client.leases import Payload

_FILES_MAX: Final = 2  # the run that is read, and one behind it, may lie in different files

_ALIGN_BYTES: Final = 64


class EntryFiles:
    """Descriptors of the cache entries that one pass reads.

    Attributes:
        usable: the daemon may send batches that lie in entries.
    """

    def __init__(self, *, usable: bool) -> None:
        self.usable = usable
        self._fds: dict[bytes, int] = {}  # by token, the latest last

    def map(self, entry: pb.Entry, socket_path: str) -> Payload:
        """Return the bytes of an entry; arrays made from them keep the file mapped.

        Raises:
            OSError: the daemon does not hand out the file, or this process may not map it. Entries are then not
                ``usable`` any more.
            ProtocolError: the file is shorter than the daemon says.
        """
        try:
            return self._mapped(entry, socket_path)
        except OSError:
            self.usable = False
            raise

    def _mapped(self, entry: pb.Entry, socket_path: str) -> Payload:
        fd = self._fds.get(entry.token)
        if fd is None:
            fd = self._fds[entry.token] = shm.entry_file(socket_path, entry.token)
            while len(self._fds) > _FILES_MAX:
                os.close(self._fds.pop(next(iter(self._fds))))
        got_bytes = os.fstat(fd).st_size
        if not 0 < entry.size_bytes <= got_bytes:  # reading past a file's end is SIGBUS, not an error
            raise ProtocolError(f"expected a cache entry of {entry.size_bytes} bytes, got {got_bytes}")
        mapping = mmap.mmap(fd, entry.size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        return np.ndarray((entry.size_bytes,), np.uint8, mapping)

    def close(self) -> None:
        """Close the descriptors; mappings stay. Calling it again has no effect."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def split(
    payload: Payload, message: pb.Batch, specs: Sequence[tuple[np.dtype[Any], tuple[int, ...]]], at: int, count: int
) -> list[Sequence[torch.Tensor]]:
    """Return each field's tensors of ``count`` batches, as views of the entry.

    Args:
        payload: the entry.
        message: describes the batches.
        specs: dtype and shape of a sample, of each field.
        at: samples from the first batch of the message to the first one wanted.
        count: number of batches.

    Raises:
        ValueError, TypeError: a field lies outside the entry, or its size or alignment is not that of its dtype.
    """
    rows, spacing = message.rows, message.entry.spacing_rows
    sizes = [*[rows, spacing - rows] * (count - 1), rows] if spacing > rows else [rows] * count
    columns: list[Sequence[torch.Tensor]] = []
    for (dtype, shape), region in zip(specs, message.regions, strict=True):
        width = region.values_bytes // rows
        if width != math.prod(shape) * dtype.itemsize or region.values_at % dtype.itemsize:
            raise ValueError(f"values of {width} bytes at {region.values_at}")
        start = region.values_at + at * width
        if shape:  # each tensor's storage is its batch's, which matters if it is saved
            places = range(start, start + count * spacing * width, spacing * width)
            columns.append([torch.from_numpy(np.ndarray((rows, *shape), dtype, payload, place)) for place in places])
            continue
        flat = torch.from_numpy(np.ndarray(((count - 1) * spacing + rows,), dtype, payload, start))
        columns.append(torch.unsafe_split_with_sizes(flat, sizes)[:: 2 if spacing > rows else 1])
    return columns


def packed(payload: Payload, message: pb.Batch, at: int) -> tuple[Payload, pb.Batch]:
    """Return a copy of one batch as it would lie in a slot, and its message; ``at``: see ``split``.

    Raises:
        ProtocolError: a field lies outside the entry.
    """
    own = pb.Batch()
    own.CopyFrom(message)
    own.ClearField("entry")
    own.alike = own.size_bytes = 0
    values = []
    for region in own.regions:
        start = region.values_at + at * (region.values_bytes // message.rows)
        if start + region.values_bytes > payload.shape[0]:
            raise ProtocolError(f"expected every field within {payload.shape[0]} bytes, got one at {start}")
        values.append(payload[start : start + region.values_bytes])
        region.values_at = own.size_bytes
        own.size_bytes += -(-region.values_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    copy = np.empty(own.size_bytes, np.uint8)
    for region, part in zip(own.regions, values, strict=True):
        copy[region.values_at : region.values_at + region.values_bytes] = part
    return copy, own
