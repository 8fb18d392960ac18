"""Cache entries that a session's client reads itself: runs of successive samples whose values it can use as they lie.

Such a run takes no copy and no worker. The client gets a read-only descriptor of the entry's file over the arena's
socket, and maps the file privately. An entry is not pinned meanwhile, because nothing that holds cache space may wait
for a trainer. An evicted file that somebody maps is unlinked and never overwritten (``cache.directory.Spares``).
Only files in memory are leased: an error of a mapped disk would end the trainer.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.flow.pools import CACHE_DISK
from feedd.flow.sink_file import is_in_memory
from feedd.values import BatchReady, EntrySpan, Region
from feedd.workers.fixed_width import plain_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.ordering.batch_plan import SpanPlan
    from feedd.values import ShardFile, SlotRef
    from feedd.workers.work import Column

_ENTRIES_MAX: Final = 2
"""Files that a session leases at one time. Their memory remains after an eviction until the client has read them."""

_TOKEN_BYTES: Final = 16


@dataclass(slots=True)
class _Entry:
    """A leased file.

    Attributes:
        fd: opened for reading.
        token: by which the client gets a copy of the descriptor.
        size_bytes: of the file.
        columns: start of each field's values in the file, and bytes of each.
        sample_count: samples that have all their values in the file.
        slots: the slots with which it is leased.
    """

    fd: int
    token: bytes
    size_bytes: int
    columns: tuple[tuple[int, int], ...]
    sample_count: int
    slots: set[SlotRef] = field(default_factory=set)


class LeasedEntries:
    """The leases of one session on cache entries. Each belongs to a slot, and ends with it."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by shard (dataset index)
        self._shard_of: dict[SlotRef, int] = {}
        self._is_usable = True

    @property
    def file_count(self) -> int:
        """Number of leased files."""
        return len(self._entries)

    def lease(self, run: SpanPlan, slot: SlotRef) -> BatchReady | None:
        """Lease the entry of a run with its slot, and return the run's first batch.

        Returns:
            None: the entry is not open, or has not all samples of the run.
        """
        entry = self._entries.get(run.shard)
        if entry is None or run.first + (run.count - 1) * run.spacing + run.rows > entry.sample_count:
            return None
        entry.slots.add(slot)
        self._shard_of[slot] = run.shard
        regions = tuple(Region(at + run.first * width, run.rows * width) for at, width in entry.columns)
        size_bytes = sum(region.values_bytes for region in regions)
        span = EntrySpan(entry.token, entry.size_bytes, run.spacing)
        return BatchReady(run.cursor, run.rows, regions, size_bytes, entry=span)

    async def open(self, shard: int, columns: Sequence[Column] | None, file: ShardFile) -> None:
        """Open the pinned file of a shard for ``lease``, which the caller calls next; if it cannot be used, do nothing.

        Args:
            shard: dataset index of the shard.
            columns: where the values of each field lie in the file; None: at irregular distances.
            file: the file.
        """
        if columns is None or not self._is_usable or file.is_anonymous or file.inflight:
            return
        placed = _placed(columns, file)
        if placed is None or shard in self._entries or len(self._entries) >= _ENTRIES_MAX:
            return
        opening = CACHE_DISK.begin(_open, file.path)
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)  # a disk may hang, so nobody waits for it
            raise
        if opened is None:
            return
        fd, size_bytes, in_memory = opened
        self._is_usable = self._is_usable and in_memory
        if not in_memory or size_bytes < file.data_at + file.ref.size_bytes or len(self._entries) >= _ENTRIES_MAX:
            os.close(fd)
        elif shard in self._entries:
            os.close(fd)  # another run of the shard was faster
        else:
            count = min((file.data_at + file.ref.size_bytes - at) // width for at, width in placed)
            self._entries[shard] = _Entry(fd, secrets.token_bytes(_TOKEN_BYTES), size_bytes, placed, count)

    def release(self, slot: SlotRef) -> None:
        """End the lease of a slot, if it has one; the file of the last lease is closed."""
        shard = self._shard_of.pop(slot, None)
        if shard is None:
            return
        entry = self._entries[shard]
        entry.slots.discard(slot)
        if not entry.slots:
            del self._entries[shard]
            os.close(entry.fd)

    def descriptor(self, token: bytes) -> int | None:
        """Return the read-only descriptor of a leased entry, which stays the session's; None: the token is unknown."""
        found = (entry.fd for entry in self._entries.values() if secrets.compare_digest(entry.token, token))
        return next(found, None)

    def close(self) -> None:
        """End all leases. What the client maps stays readable to it."""
        self._shard_of.clear()
        while self._entries:
            os.close(self._entries.popitem()[1].fd)


def _open(path: str) -> tuple[int, int, bool] | None:
    """Open a file for reading; return it, its size, and whether its pages are memory. None: it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None  # the workers' copies report it
    return fd, os.fstat(fd).st_size, is_in_memory(fd)


def _close_unused(opening: asyncio.Future[tuple[int, int, bool] | None]) -> None:
    """Close the file that a cancelled ``open`` left behind."""
    if not opening.cancelled() and opening.exception() is None and (opened := opening.result()) is not None:
        os.close(opened[0])


def _placed(columns: Sequence[Column], file: ShardFile) -> tuple[tuple[int, int], ...] | None:
    """Return start and bytes of each field's values in the file; None: some cannot be used as they lie."""
    placed = []
    for column in columns:
        plain = plain_numbers(column.recipe)
        at, step_bytes = file.data_at + int(column.at[0]), int(column.step_bytes[0])
        if plain is None or plain.encoding != plain.out or step_bytes != plain.width_bytes:
            return None
        if at % np.dtype(plain.out).itemsize:
            return None
        placed.append((at, step_bytes))
    return tuple(placed)
