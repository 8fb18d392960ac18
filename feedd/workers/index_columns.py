"""Sends a shard index from worker to daemon: too large for a packet, it travels as a memfd.

Layout: int64 starts[field, sample] and int64 sizes[field, sample] of the fields without a stride. Keys follow if they
are not numbers: int64 key_ends[sample], and the key blob. The last part is uint8 reasons[field, sample] if there are
any. Where the values of a field with a stride lie is told by three numbers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.errors import Internal
from feedd.flow.sink_file import memory_file
from feedd.shard_index import SAMPLES_MAX, NumberedIndex, RegularIndex, ShardIndex
from feedd.workers.descriptors import out_of_descriptors
from feedd.workers.messages import Indexed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMBERED = -1  # in place of the bytes of keys: keys are numbers
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE


Strides = tuple[tuple[int, int, int] | None, ...]


def strides_of(index: ShardIndex) -> Strides:
    """Return the index's strides, found out if it lacks them."""
    if index.strides:
        return index.strides
    return tuple(map(_stride, index.starts, index.sizes))


def _stride(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[int, int, int] | None:
    if not len(starts) or sizes[0] < 0 or not (sizes == sizes[0]).all():
        return None
    step = int(starts[1] - starts[0]) if len(starts) > 1 else int(sizes[0])
    if step <= 0 or not (starts[1:] - starts[:-1] == step).all():
        return None
    return int(starts[0]), step, int(sizes[0])


def indexed(request_id: int, busy_s: float, index: ShardIndex, strides: Strides) -> Indexed:
    """Return the message that goes with ``pack``."""
    key_bytes = _NUMBERED if index.is_numbered else len(index.key_blob)
    told = index.fields, index.sample_count, key_bytes, index.encodings, index.notes, index.unread
    has_reasons = index.reasons is not None
    return Indexed(request_id, busy_s, *told, has_reasons=has_reasons, strides=strides, is_regular=index.is_regular)


def pack(index: ShardIndex, strides: Strides) -> int:
    """Return a new memfd with the columns; the caller closes it."""
    fd = memory_file("feedd-index")
    others = [number for number, stride in enumerate(strides) if stride is None]
    try:
        if index.is_regular:
            return fd
        for column in (index.starts[others], index.sizes[others]):
            _write(fd, np.ascontiguousarray(column, "<i8").reshape(-1).view(np.uint8).data)
        if not index.is_numbered:
            _write(fd, np.ascontiguousarray(index.key_ends, "<i8").view(np.uint8).data)
            _write(fd, memoryview(index.key_blob))
        if index.reasons is not None:
            _write(fd, np.ascontiguousarray(index.reasons).reshape(-1).data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def pack_values(values: NDArray[Any]) -> int:
    """Return a new memfd with an array's numbers; the caller closes it."""
    fd = memory_file("feedd-values")
    try:
        _write(fd, np.ascontiguousarray(values).view(np.uint8).data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, size_bytes: int) -> memoryview:
    """Return the bytes of a memfd, mapped; the descriptor may be closed afterwards.

    Raises:
        Internal: the memfd has another size, or could still change: a page that a worker cuts off would be a SIGBUS.
        ResourceExhausted: there is no room for a mapping.
    """
    if not size_bytes:
        return memoryview(b"")
    if os.fstat(fd).st_size != size_bytes:
        raise Internal(f"expected {size_bytes} bytes of values, got {os.fstat(fd).st_size}", stage="decode")
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise Internal("expected values that cannot change, got a memfd without seals", stage="decode")
    try:
        return memoryview(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
    except OSError as error:
        raise out_of_descriptors(str(error.strerror)) from error


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def unpack(fd: int, reply: Indexed, limit_bytes: int = 1 << 62) -> ShardIndex:
    """Return the index in a memfd made by ``pack``; does not close it. A regular index needs no memfd.

    Raises:
        Internal: the columns exceed ``limit_bytes``, or the memfd has another size than the reply says. This is checked
            before memory is taken.
    """
    _check(reply)
    if reply.is_regular:
        return unpack_regular(reply)
    samples, strides = reply.sample_count, reply.strides or (None,) * len(reply.fields)
    others = [number for number, stride in enumerate(strides) if stride is None]
    cells, all_cells = samples * len(others), samples * len(reply.fields)
    is_numbered, key_bytes = reply.key_bytes == _NUMBERED, max(reply.key_bytes, 0)
    ends = 0 if is_numbered else samples
    more_bytes = 8 * ends + key_bytes + (all_cells if reply.has_reasons else 0)
    said_bytes, taken_bytes = 16 * cells + more_bytes, 16 * all_cells + more_bytes
    if taken_bytes > limit_bytes:
        raise Internal(f"expected a shard index of at most {limit_bytes} bytes, got {taken_bytes}", stage="decode")
    if reply.key_bytes < _NUMBERED or os.fstat(fd).st_size != said_bytes:
        raise Internal(f"expected a shard index of {said_bytes} bytes, got {os.fstat(fd).st_size}", stage="decode")
    numbers = np.empty(2 * cells + ends, np.int64)
    _read(fd, numbers.view(np.uint8).data, 0)
    keys = _keys(fd, key_bytes, numbers.nbytes)
    shape = (len(reply.fields), samples)
    reasons = np.empty(shape, np.uint8) if reply.has_reasons else None
    if reasons is not None:
        _read(fd, reasons.reshape(-1).data, numbers.nbytes + len(keys))
    starts, sizes = numbers[: 2 * cells].reshape(2, len(others), samples)
    if cells < all_cells:
        starts, sizes = _with_strides(starts, sizes, strides, shape)
    told = reply.encodings, reply.notes, reply.unread, reasons, strides
    if is_numbered:
        return NumberedIndex(reply.fields, starts, sizes, samples, *told)
    return ShardIndex(reply.fields, starts, sizes, keys, numbers[2 * cells :], *told)


def unpack_regular(reply: Indexed) -> RegularIndex:
    """Return the regular index in a message.

    Raises:
        Internal: the message contradicts itself.
    """
    _check(reply)
    if not reply.is_regular or None in reply.strides:
        raise Internal(f"expected a regular index, got strides {reply.strides[:4]}", stage="decode")
    told = reply.encodings, reply.notes, reply.unread
    return RegularIndex(reply.fields, reply.strides, reply.sample_count, *told)


def _check(reply: Indexed) -> None:
    if len(reply.strides) != (len(reply.fields) if reply.strides or reply.is_regular else 0):
        raise Internal(f"expected strides of {len(reply.fields)} fields, got {len(reply.strides)}", stage="decode")
    if not 0 <= reply.sample_count <= SAMPLES_MAX:
        expected = f"expected a shard index of 0 to {SAMPLES_MAX} samples"
        raise Internal(f"{expected}, got {reply.sample_count}", stage="decode")


def _with_strides(
    starts: NDArray[np.int64], sizes: NDArray[np.int64], strides: Strides, shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and sizes of all fields, from those of the fields without a stride."""
    others = iter(zip(starts, sizes, strict=True))
    all_starts, all_sizes = np.empty(shape, np.int64), np.empty(shape, np.int64)
    numbers = np.arange(shape[1], dtype=np.int64)
    for column, stride in enumerate(strides):
        if stride is None:
            all_starts[column], all_sizes[column] = next(others)
        else:
            at, step, size = stride
            np.multiply(numbers, step, out=all_starts[column])
            all_starts[column] += at
            all_sizes[column] = size
    return all_starts, all_sizes


def _keys(fd: int, size_bytes: int, at: int) -> bytes:
    """Return bytes of a memfd; most are read with one call, and then not copied."""
    keys = os.pread(fd, size_bytes, at)
    if len(keys) < size_bytes:
        rest = bytearray(size_bytes - len(keys))
        _read(fd, memoryview(rest), at + len(keys))
        keys += rest
    return keys


def _read(fd: int, target: memoryview, at: int) -> None:
    while target:
        count = os.preadv(fd, [target], at)
        if not count:
            raise Internal(f"expected {len(target)} more bytes of a shard index, got its end", stage="decode")
        target, at = target[count:], at + count
