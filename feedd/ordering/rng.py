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
    from collections.abc import Iterator

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
    for piece, beside in _pieces(words.reshape(-1)):
        _draw(piece, key, beside)
    return words


def _draw(words: NDArray[np.uint64], key: int, beside: NDArray[np.uint64]) -> None:
    """Replace counters by the key's words. ``beside`` is other memory of the same size."""
    words += np.uint64(1)
    words *= np.uint64(GAMMA)
    words += np.uint64(key & _MASK)
    words ^= np.right_shift(words, np.uint64(30), out=beside)
    words *= np.uint64(_MIX_1)
    words ^= np.right_shift(words, np.uint64(27), out=beside)
    words *= np.uint64(_MIX_2)
    words ^= np.right_shift(words, np.uint64(31), out=beside)


def permutation(count: int, key: int) -> NDArray[np.int64]:
    """Return ``count`` indices sorted by the key's stream, whose words are all different."""
    found = _ascending_in_place(_words(count, key))
    return np.argsort(_words(count, key)) if found is None else found


def index_type(count: int) -> type[np.signedinteger]:
    """Return the type of the numbers of ``count`` samples that are kept."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def narrow_permutation(count: int, key: int) -> NDArray[np.signedinteger]:
    """Return ``permutation`` as int32 if the numbers fit. At no time does this take more memory than that."""
    words = _words(count, key)
    found = _ascending_in_place(words)
    if found is None or index_type(count) is np.int64:
        return permutation(count, key).astype(index_type(count), copy=False)
    halves = words.view(np.int32)
    for first in range(0, count, _PIECE_WORDS):
        piece = found[first : first + _PIECE_WORDS]
        halves[first : first + len(piece)] = piece
    del found, halves
    words.resize(-(-count // 2), refcheck=False)  # gives half of the memory back; no view of it is left
    return words.view(np.int32)[:count]


def _words(count: int, key: int) -> NDArray[np.uint64]:
    words = np.arange(count, dtype=np.uint64)
    for piece, beside in _pieces(words):
        _draw(piece, key, beside)
    return words


def ascending(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the indices that sort distinct random words."""
    found = _ascending_in_place(words.copy())
    return np.argsort(words) if found is None else found


def _ascending_in_place(marked: NDArray[np.uint64]) -> NDArray[np.int64] | None:
    """Return the indices that sort distinct random words, in the memory of the words.

    The lowest bits of each word are replaced by its index, and the numbers are sorted where they lie. Fresh memory
    costs as much as sorting.
    If two words differ in their lowest bits only, which is rare, the result is None: the caller sorts all words.
    """
    bits = max(len(marked) - 1, 0).bit_length()
    low = np.uint64((1 << bits) - 1)
    for number, (piece, beside) in enumerate(_pieces(marked)):
        first = number * _PIECE_WORDS
        beside[...] = np.arange(first, first + len(piece), dtype=np.uint64)
        np.bitwise_and(piece, ~low, out=piece)
        np.bitwise_or(piece, beside, out=piece)
    marked.sort()
    before = np.uint64(0)
    for number, (piece, beside) in enumerate(_pieces(marked)):
        np.right_shift(piece, np.uint64(bits), out=beside)
        if (beside[1:] == beside[:-1]).any() or (number and beside[0] == before):
            return None
        before = beside[-1]
        np.bitwise_and(piece, low, out=piece)
    return marked.view(np.int64)


def _pieces(words: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield parts of an array that a core's cache holds, and memory of the same size that is used for all parts."""
    beside = np.empty(min(len(words), _PIECE_WORDS), np.uint64)
    for first in range(0, len(words), _PIECE_WORDS):
        piece = words[first : first + _PIECE_WORDS]
        yield piece, beside[: len(piece)]
