"""Where one pack ends and the next begins. Pure, and a function of the listing alone.

Borders depend on names: among the allowed sizes of a pack, the border is at the name with the smallest hash. So added
or removed objects move only the borders near them, and all other packs in the cache stay valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACK_BYTES_LEAST: Final = 8 << 20
PACK_BYTES_MOST: Final = 32 << 20
PACK_OBJECTS_LEAST: Final = 256
PACK_OBJECTS_MOST: Final = 1024


def borders(sizes: NDArray[np.int64], counts: NDArray[np.int64], marks: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the first sample of each pack, and the number of samples at the end.

    A pack has at most ``PACK_BYTES_MOST`` bytes and ``PACK_OBJECTS_MOST`` objects, unless a single sample has more. A
    pack has ``PACK_BYTES_LEAST`` bytes or ``PACK_OBJECTS_LEAST`` objects, unless it is the last, or the next sample
    does not fit. A few microseconds per pack.

    Args:
        sizes: int64[n], bytes of each sample.
        counts: int64[n], objects of each sample.
        marks: uint32[n], a hash of each sample's name.
    """
    total = len(sizes)
    byte_ends, object_ends = np.cumsum(sizes), np.cumsum(counts)
    found, at = [0] if total else [], 0
    bytes_before = objects_before = 0
    while at < total:
        most = _least_of(byte_ends, bytes_before + PACK_BYTES_MOST, object_ends, objects_before + PACK_OBJECTS_MOST)
        end = max(most, at + 1)
        if end < total:
            least = _least_of(
                byte_ends, bytes_before + PACK_BYTES_LEAST - 1, object_ends, objects_before + PACK_OBJECTS_LEAST - 1
            )
            first = max(least + 1, at + 1)
            if first < end:
                end = first + int(np.argmin(marks[first : end + 1]))
        found.append(end)
        at = end
        bytes_before, objects_before = int(byte_ends[at - 1]), int(object_ends[at - 1])
    return np.array(found or [0], np.int64)


def _least_of(byte_ends: NDArray[np.int64], byte: int, object_ends: NDArray[np.int64], count: int) -> int:
    """Return how many samples from the start end within that many bytes and that many objects."""
    return min(int(np.searchsorted(byte_ends, byte, "right")), int(np.searchsorted(object_ends, count, "right")))
