"""Counts one shard, here or in a task on another machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import FeeddError

if TYPE_CHECKING:
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


async def count_shard(
    catalog: DatasetCatalog, listing: Listing, shard: int, left_out: LeftOutFields
) -> ShardCount | FeeddError:
    """Count a shard by its headers or as a whole; return the error if that fails.

    Args:
        catalog: reads the shard.
        listing: the dataset.
        shard: number of the shard.
        left_out: learns which fields of the shard are left out if the trainer names no fields.
    """
    try:
        found = await catalog.index(listing.as_listed, shard, outline=True)
    except FeeddError as error:
        error.object = error.object or listing.refs[shard].url
        return error
    left_out.add(found)
    return ShardCount(found.sample_count, found.fields, found.unread)
