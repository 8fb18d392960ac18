"""Counts shards as Ray tasks. The driver lists the dataset once, and a task is told the shards that it counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from feedd.cache.lock import temporary_cache
from feedd.clock import SystemClock
from feedd.daemon.wiring import open_pipeline
from feedd.dataset.listing import Listing
from feedd.errors import FeeddError
from feedd.flow.ray_tasks import RayWork, run_on_ray
from feedd.metrics import SOURCE_BYTES
from feedd.observe.recorder import TotalRecorder
from feedd.prepare.shard_count import CountJob, count_each
from feedd.recipe.left_out import LeftOutFields
from feedd.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.config import Config
    from feedd.prepare.sample_counter import Counter
    from feedd.prepare.shard_count import ShardCount
    from feedd.values import ObjectRef

_T = TypeVar("_T")

_TASKS: Final = 256  # wanted, within the limits below
_BYTES_LEAST: Final = 16 * MIB
_BYTES_MOST: Final = 4 * GIB
_SHARDS_MOST: Final = 1024
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of one task, with what their listing tells about them, by their position here.

    Attributes:
        numbers: their numbers in the dataset.
        refs: the objects.
        named: formats that URLs name.
        formats: formats that sidecars name.
        idx_bytes: sizes of the ``.idx`` files beside records.
    """

    numbers: tuple[int, ...]
    refs: tuple[ObjectRef, ...]
    named: Mapping[int, str]
    formats: Mapping[int, str]
    idx_bytes: Mapping[int, int]

    @classmethod
    def of(cls, listing: Listing, numbers: tuple[int, ...]) -> Shards:
        """Return some shards of a dataset."""
        refs = tuple(listing.refs[number] for number in numbers)
        named, formats = _of(listing.named, numbers), _of(listing.formats, numbers)
        return cls(numbers, refs, named, formats, _of(listing.idx_bytes, numbers))

    def listing(self) -> Listing:
        """Return these shards as a dataset."""
        found = Listing.of(self.refs, 0.0)
        found.named, found.formats, found.idx_bytes = self.named, self.formats, self.idx_bytes
        return found


@dataclass(frozen=True, slots=True)
class Counts:
    """What a task returns.

    Attributes:
        found: the count of each shard, or its error.
        left_out: fields of these shards that are left out if the trainer names no fields.
        fetched_bytes: bytes that the store has sent.
    """

    found: list[ShardCount | FeeddError]
    left_out: LeftOutFields
    fetched_bytes: int


async def count_on_ray(counter: Counter, config: Config, url: str) -> int:
    """Count every unknown shard of a part on the cluster of ``$RAY_ADDRESS``, or on this machine.

    Args:
        counter: an open counter.
        config: configuration of all tasks. Each has a cache of its own.
        url: URL of the dataset.

    Returns:
        Bytes that the store has sent to the tasks.

    Raises:
        What ``run_on_ray`` raises.
    """
    left = list(await counter.begin())
    if not left:  # Ray need not start
        return 0
    fetched_bytes = 0

    async def done(shards: Shards, counts: Counts) -> None:
        nonlocal fetched_bytes
        fetched_bytes += counts.fetched_bytes
        counter.progress.fields.update(counts.left_out)
        for shard, found in zip(shards.numbers, counts.found, strict=True):
            await counter.note(shard, found)

    work = RayWork(count_shards, config, lambda shards: shards.refs[0].url, url, "prepare")
    await run_on_ray(work, tasks_of(counter.listing, left), done)
    return fetched_bytes


def tasks_of(listing: Listing, numbers: Sequence[int]) -> Iterator[Shards]:
    """Yield the shards of one task after another. A task takes a second to begin."""
    wanted_bytes = min(max(int(listing.sizes[numbers].sum()) // _TASKS, _BYTES_LEAST), _BYTES_MOST)
    some: list[int] = []
    size_bytes = 0
    for number in numbers:
        some.append(number)
        size_bytes += int(listing.sizes[number])
        if size_bytes >= wanted_bytes or len(some) == _SHARDS_MOST:
            yield Shards.of(listing, tuple(some))
            some, size_bytes = [], 0
    if some:
        yield Shards.of(listing, tuple(some))


def _of(table: Mapping[int, _T], numbers: tuple[int, ...]) -> dict[int, _T]:
    """Return the entries of some shards, by their position among these."""
    return {at: table[number] for at, number in enumerate(numbers) if number in table}


def count_shards(config: Config, shards: Shards) -> Counts | FeeddError:
    """Count the shards of one task, with a cache and a decode worker of its own; return an error that concerns all."""
    try:
        return asyncio.run(_counted(config, shards))
    except FeeddError as error:
        return error


async def _counted(config: Config, shards: Shards) -> Counts:
    with temporary_cache() as folder:
        cache = config.cache.model_copy(update={"dir": folder})
        decode = config.decode.model_copy(update={"workers": 1})
        own = config.model_copy(update={"cache": cache, "decode": decode})
        recorder, left_out, listing = TotalRecorder(SOURCE_BYTES), LeftOutFields(), shards.listing()
        found: dict[int, ShardCount | FeeddError] = {}

        async def note(at: int, one: ShardCount | FeeddError) -> None:
            found[at] = one

        every = range(len(shards.numbers))
        async with open_pipeline(own, recorder, SystemClock()) as pipeline:
            await count_each(CountJob(pipeline.catalog, listing, left_out), iter(every), note, _AT_ONCE)
        return Counts([found[at] for at in every], left_out, int(recorder.total))
