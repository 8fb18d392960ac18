"""Numbers as protobuf packs them: seven bits to a byte, lowest first; bytes with the eighth set have another behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES_MAX: Final = 10  # of one number: 64 bits, seven at a time


def count_varints(data: memoryview) -> int:
    """Return how many numbers end in ``data``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x80))


def unpack_varints(data: memoryview) -> NDArray[np.int64]:
    """Return the numbers, int64[n], in two's complement as protobuf has its int64.

    Raises:
        BadSample: the last one has no end, or one is too long.
    """
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.zeros(0, np.int64)
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        raise BadSample(f"expected whole varints, got {len(raw)} bytes whose last one goes on")
    first = np.concatenate(([0], last[:-1] + 1))
    lengths = last - first + 1
    if lengths.max() > _BYTES_MAX:
        raise BadSample(f"expected varints of at most {_BYTES_MAX} bytes, got {int(lengths.max())}")
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(lengths.max())):
        there = lengths > place
        numbers[there] |= (raw[first[there] + place] & np.uint64(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return numbers.view(np.int64)
