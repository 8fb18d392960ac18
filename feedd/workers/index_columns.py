"""Sends a shard index from worker to daemon: too large for a packet, it travels as a memfd.

Layout of an index whose keys are numbers: starts and sizes of each ``PackedColumn``, as its form says. Of another
index: int64 starts[field, sample], int64 sizes[field, sample], int64 key_ends[sample], and the key blob. The last part
is uint8 reasons[field, sample] if there are any.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedd.errors import Internal
from feedd.flow.sink_file import memory_file
from feedd.shard_index import SAMPLES_MAX, NumberedIndex, PackedColumn, PackedIndex, RegularIndex, ShardIndex
from feedd.workers.messages import Indexed, out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_NUMBERED = -1  # in place of the bytes of keys: keys are numbers
_GAP_MAX = np.iinfo(np.int32).max  # a larger one is not taken out
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE


def packed(index: ShardIndex) -> ShardIndex:
    """Return an index in the form in which the daemon keeps it, with its strides."""
    if isinstance(index, RegularIndex):
        return index
    strides = index.strides or tuple(map(_stride, index.starts, index.sizes))
    if isinstance(index, NumberedIndex):
        return PackedIndex.of(index, strides)
    return replace(index, strides=strides)


def _stride(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[int, int, int] | None:
    if not len(starts) or sizes[0] < 0 or not (sizes == sizes[0]).all():
        return None
    step = int(starts[1] - starts[0]) if len(starts) > 1 else int(sizes[0])
    if step <= 0 or not (starts[1:] - starts[:-1] == step).all():
        return None
    return int(starts[0]), step, int(sizes[0])


def indexed(request_id: int, busy_s: float, index: ShardIndex) -> Indexed:
    """Return the message that goes with ``pack``."""
    packed_columns = index.columns if isinstance(index, PackedIndex) else ()
    forms = tuple((one.starts.itemsize, int(one.sizes is None), one.gap) for one in packed_columns if one is not None)
    key_bytes = _NUMBERED if index.is_numbered else len(index.key_blob)
    told = index.fields, index.sample_count, key_bytes, index.encodings, index.notes, index.unread
    has_reasons = index.reasons is not None
    how = index.strides, index.is_regular, forms
    return Indexed(request_id, busy_s, *told, has_reasons, *how)


def pack(index: ShardIndex) -> int:
    """Return a new memfd with the columns of a result of ``packed``; the caller closes it."""
    fd = memory_file("feedd-index")
    try:
        for column in _columns(index):
            _write(fd, np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _columns(index: ShardIndex) -> Iterator[NDArray[Any]]:
    """Yield what the memfd holds, in order."""
    if isinstance(index, PackedIndex):
        for column in index.columns:
            if column is not None:
                yield column.starts
                yield from () if column.sizes is None else (column.sizes,)
    else:
        yield from (index.starts, index.sizes, index.key_ends, np.frombuffer(index.key_blob, np.uint8))
    if index.reasons is not None:
        yield index.reasons


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
    samples, fields = reply.sample_count, reply.fields
    cells, is_numbered = samples * len(fields), reply.key_bytes == _NUMBERED
    if is_numbered:
        taken_bytes = sum(width * (samples + 1 if is_joined else 2 * samples) for width, is_joined, _ in reply.layouts)
    else:
        taken_bytes = 16 * cells + 8 * samples + reply.key_bytes
    taken_bytes += cells if reply.has_reasons else 0
    if taken_bytes > limit_bytes:
        raise Internal(f"expected a shard index of at most {limit_bytes} bytes, got {taken_bytes}", stage="decode")
    if reply.key_bytes < _NUMBERED or os.fstat(fd).st_size != taken_bytes:
        raise Internal(f"expected a shard index of {taken_bytes} bytes, got {os.fstat(fd).st_size}", stage="decode")
    data = _Columns(fd)
    if is_numbered:
        forms = iter(reply.layouts)
        columns = tuple(data.column(samples, *next(forms)) if one is None else None for one in reply.strides)
        told = reply.encodings, reply.notes, reply.unread
        return PackedIndex(fields, columns, reply.strides, samples, *told, data.reasons(reply))
    starts, sizes = data.take(2 * cells, 8).reshape(2, len(fields), samples)
    key_ends, keys = data.take(samples, 8), data.keys(reply.key_bytes)
    told = reply.encodings, reply.notes, reply.unread
    return ShardIndex(fields, starts, sizes, keys, key_ends, *told, data.reasons(reply), reply.strides)


class _Columns:
    """The parts of a memfd, one after another."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0

    def take(self, count: int, width: int) -> NDArray[Any]:
        """Return the next numbers of ``width`` bytes."""
        numbers = np.empty(count, f"i{width}")
        _read(self._fd, numbers.view(np.uint8).data, self._at)
        self._at += numbers.nbytes
        return numbers

    def column(self, samples: int, width: int, is_joined: int, gap: int) -> PackedColumn:
        """Return the next column."""
        starts = self.take(samples + 1 if is_joined else samples, width)
        return PackedColumn(starts, None if is_joined else self.take(samples, width), gap)

    def keys(self, size_bytes: int) -> bytes:
        """Return the next bytes."""
        self._at += size_bytes
        return _keys(self._fd, size_bytes, self._at - size_bytes)

    def reasons(self, reply: Indexed) -> NDArray[np.uint8] | None:
        """Return the last part, if there is one."""
        if not reply.has_reasons:
            return None
        shape = len(reply.fields), reply.sample_count
        return self.take(shape[0] * shape[1], 1).view(np.uint8).reshape(shape)


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
    if not 0 <= reply.sample_count <= SAMPLES_MAX:
        expected = f"expected a shard index of 0 to {SAMPLES_MAX} samples"
        raise Internal(f"{expected}, got {reply.sample_count}", stage="decode")
    if len(reply.strides) != len(reply.fields):
        raise Internal(f"expected strides of {len(reply.fields)} fields, got {len(reply.strides)}", stage="decode")
    columns = reply.strides.count(None) if reply.key_bytes == _NUMBERED else 0
    if len(reply.layouts) != columns or any(
        width not in {4, 8} or not -_GAP_MAX <= gap <= _GAP_MAX for width, _, gap in reply.layouts
    ):
        raise Internal(f"expected the forms of {columns} columns, got {reply.layouts[:4]}", stage="decode")


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
