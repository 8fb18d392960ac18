"""Shards that are ``u32 n, u32 offset[n + 1]`` and rows of values, as MosaicML and LitData write them.

Offsets count from the shard's start. A row is one u32 size for each column of variable size, then the values of all
columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.formats.framing import ShardReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def first_rows(data: memoryview) -> tuple[bytes, memoryview]:
    """Return a smaller shard of the whole rows in a shard's first bytes, as its head and its rows.

    Both are empty if no row is whole.
    """
    count = int.from_bytes(data[:4], "little")
    table_end = 8 + 4 * count
    if len(data) < 8 or table_end > len(data):
        return b"", data[:0]
    offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
    whole = int(np.flatnonzero(offsets[1:] > len(data)).min(initial=count))
    first, end = int(offsets[0]), int(offsets[whole])
    if not whole or not table_end <= first <= end:
        return b"", data[:0]
    moved = offsets[: whole + 1] - 4 * (count - whole)
    head = whole.to_bytes(4, "little") + moved.astype("<u4").tobytes() + bytes(data[table_end:first])
    return head, data[first:end]


def rows_start(data: memoryview) -> int:
    """Return the start of the rows, from the first bytes of a shard."""
    return int.from_bytes(data[4:8], "little")


class RowsReader(ShardReader):
    """Reads the columns of one shard, all samples at a time."""

    def offsets(self, what: str) -> NDArray[np.int64]:
        """Return int64[samples + 1]: the start of each sample, and the end of the last.

        Args:
            what: kind of the shard, for messages.

        Raises:
            BadShard: the header is missing, or the offsets do not ascend to the shard's end.
        """
        total = len(self._data)
        count = int.from_bytes(self._data[:4], "little")
        if total < 8 or 8 + 4 * count > total:
            self.fail(0, f"{what}'s number of samples and their offsets", f"{count} samples in {total} bytes")
        offsets = np.frombuffer(self._data, "<u4", count + 1, 4).astype(np.int64)
        if (np.diff(offsets) < 0).any() or offsets[-1] != total or offsets[0] < 8 + 4 * count:
            self.fail(4, f"ascending offsets up to {total}", f"{offsets[0]} to {offsets[-1]}")
        return offsets

    def columns(
        self, fixed: Sequence[int | None], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and sizes of each sample's columns, int64[columns, samples] each.

        Args:
            fixed: size of each column in bytes; None or 0: each sample stores the size.
            offsets: see ``offsets``.

        Raises:
            BadShard: the sizes do not add up to the samples.
        """
        columns, samples = len(fixed), len(offsets) - 1
        self.check_cells(columns, samples)
        sizes = np.empty((columns, samples), np.int64)
        variable = [number for number, size in enumerate(fixed) if not size]
        begins, ends = offsets[:-1], offsets[1:]
        heads = 4 * len(variable)
        if samples and (ends - begins).min(initial=heads) < heads:
            worst = int(np.argmin(ends - begins))
            self.fail(int(begins[worst]), f"{heads} bytes of sizes", f"a sample of {ends[worst] - begins[worst]} bytes")
        raw = np.frombuffer(self._data, np.uint8)
        for place, number in enumerate(variable):
            at = begins + 4 * place
            sizes[number] = sum(raw[at + byte].astype(np.int64) << 8 * byte for byte in range(4))
        for number, size in enumerate(fixed):
            if size:
                sizes[number] = size
        starts = begins + heads + np.cumsum(sizes, axis=0) - sizes
        wrong = np.flatnonzero(begins + heads + sizes.sum(axis=0) != ends)
        if len(wrong):
            first = int(wrong[0])
            says = heads + int(sizes[:, first].sum())
            self.fail(int(begins[first]), f"a sample of {ends[first] - begins[first]} bytes", f"sizes that make {says}")
        return starts, sizes
