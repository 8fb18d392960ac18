"""Finds the dataset index of an object, in 12 bytes per shard and without a Python object for each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from feedd.values import ObjectRef


class ShardNumbers:
    """Dataset indices by object version. Two versions with one 64-bit hash are taken for the same; that is for hints.

    Args:
        refs: the objects in the dataset's order. Building takes half a microsecond for each.
    """

    def __init__(self, refs: Collection[ObjectRef]) -> None:
        hashes = np.fromiter(map(_hash_of, refs), np.int64, len(refs))
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._numbers = order.astype(np.int32)

    def find(self, wanted: Collection[ObjectRef], refs: Sequence[ObjectRef]) -> NDArray[np.int64]:
        """Return the dataset index of each wanted object, int64[wanted]; -1: it is not in the dataset.

        Args:
            wanted: objects, with their conversions. Sizes are not compared, because a converted shard has its own.
            refs: the objects of the dataset, each with the conversion in which it is read.
        """
        hashes = np.fromiter(map(_hash_of, wanted), np.int64, len(wanted))
        lows = np.searchsorted(self._hashes, hashes, "left")
        highs = np.searchsorted(self._hashes, hashes, "right")
        found = np.full(len(wanted), -1, np.int64)
        for at, ref in enumerate(wanted):
            for number in self._numbers[lows[at] : highs[at]].tolist():
                if refs[number].conversion == ref.conversion:
                    found[at] = number
                    break
        return found


def _hash_of(ref: ObjectRef) -> int:
    return hash((ref.root, ref.key, ref.etag))
