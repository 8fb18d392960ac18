"""Counter-based random numbers: SplitMix64, written out so that no library release can change an order.

``stream(key)[i] = finalize(key + (i + 1) * GAMMA) mod 2**64`` with the constants of Steele, Lea and Flood, "Fast
splittable pseudorandom number generators" (OOPSLA 2014). Each element is computed independently, so any position is
reached in O(1), and an array of elements takes a handful of vector operations. Stored vectors in tests hold the
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

# Domains separate the streams of one (seed, epoch). The numbers are part of the order: never renumber.
SHARDS = 1
SAMPLES = 2
AUGMENT = 3
CHANNELS = 33  # 4, 17 and 18 are those of other modules of this room

_PIECE_WORDS = 8192  # fits into a core's cache


def finalize(value: int) -> int:
    """Return SplitMix64's output function of one 64-bit word."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def derive(*words: int) -> int:
    """Fold any number of integers into one 64-bit key; their order matters."""
    key = 0
    for word in words:
        key = finalize((key ^ (word & _MASK)) + GAMMA)
    return key


def stream(key: int, counters: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the key's stream at ``counters`` (any shape), as uint64 of the same shape."""
    words = counters.astype(np.uint64, order="C")
    flat = words.reshape(-1)
    shifted = np.empty(min(flat.shape[0], _PIECE_WORDS), np.uint64)
    for first in range(0, flat.shape[0], _PIECE_WORDS):
        piece = flat[first : first + _PIECE_WORDS]
        beside = shifted[: piece.shape[0]]
        piece += np.uint64(1)
        piece *= np.uint64(GAMMA)
        piece += np.uint64(key & _MASK)
        piece ^= np.right_shift(piece, np.uint64(30), out=beside)
        piece *= np.uint64(_MIX_1)
        piece ^= np.right_shift(piece, np.uint64(27), out=beside)
        piece *= np.uint64(_MIX_2)
        piece ^= np.right_shift(piece, np.uint64(31), out=beside)
    return words


def permutation(count: int, key: int) -> NDArray[np.int64]:
    """Return ``count`` indices sorted by the key's stream, whose words are all different."""
    return ascending(stream(key, np.arange(count, dtype=np.uint64)))


def ascending(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the indices that sort distinct random words.

    NumPy sorts numbers of 16 bits by counting them. So the words are sorted by two such quarters, the lower one first.
    Words that agree in both are sorted afterwards. For 524,288 words this takes 10 ms, and ``np.argsort`` 36 ms.
    """
    order = np.argsort((words >> np.uint64(32)).astype(np.uint16), kind="stable")
    order = order[np.argsort((words >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
    words = words[order]
    while (late := np.flatnonzero(words[1:] < words[:-1])).size:
        late = late[np.diff(late, prepend=-2) > 1]  # one pair at a time if three upper halves are equal
        for column in (order, words):
            column[late], column[late + 1] = column[late + 1], column[late].copy()
    return order
