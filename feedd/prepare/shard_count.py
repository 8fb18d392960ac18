"""Counts shards, here or in a task on another machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.dataset.listing import Listing
    from feedd.recipe.left_out import LeftOutFields


@dataclass(frozen=True, slots=True)
class ShardCount:
    """What a count learns of one shard.

    Attributes:
        sample_count: samples in the shard.
        fields: names of its fields.
        unread: name and type of columns that no field can read.
    """

    sample_count: int
    fields: tuple[str, ...]
    unread: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CountJob:
    """A dataset whose shards are counted, and what reads it.

    Attributes:
        catalog: reads the shards.
        listing: the dataset.
        left_out: learns which fields of the shards are left out if the trainer names no fields.
    """

    catalog: DatasetCatalog
    listing: Listing
    left_out: LeftOutFields

    async def counted(self, shard: int) -> ShardCount | FeeddError:
        """Count a shard by its headers or as a whole; return the error if that fails."""
        try:
            found = await self.catalog.index(self.listing.as_listed, shard, outline=True)
        except FeeddError as error:
            error.object = error.object or self.listing.refs[shard].url
            return error
        self.left_out.add(found)
        return ShardCount(found.sample_count, found.fields, found.unread)


async def count_each(
    job: CountJob,
    shards: Iterator[int],
    note: Callable[[int, ShardCount | FeeddError], Awaitable[None]],
    at_once: int,
) -> None:
    """Count shards, and give each count or error to ``note``.

    Args:
        job: counts a shard.
        shards: numbers of the shards; taken one after another.
        note: called with the number of a shard, and with its count or its error.
        at_once: shards to read at the same time.
    """

    async def work() -> None:
        for shard in shards:  # the iterator is shared: each task takes the next shard
            await note(shard, await job.counted(shard))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
