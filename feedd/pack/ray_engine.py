"""Writes the shards of a pack as Ray tasks, one for each shard.

A task is told the number of its shard and reads the plan from the destination, once per worker process. So Ray
may run a task again, on any node, and the shard stays the same.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.pack_names import PLAN_NAME
from feedd.errors import FeeddError
from feedd.flow.ray_tasks import RayWork, run_on_ray
from feedd.observe.recorder import NullRecorder
from feedd.pack.bucket_folder import destination
from feedd.pack.frozen_source import parse
from feedd.pack.shard_builder import ShardBuilder
from feedd.pack.shard_writers import writer_of

if TYPE_CHECKING:
    from feedd.dataset.shard_part import ShardPart
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.pack.destination import ShardRecord
    from feedd.pack.frozen_source import FrozenSource
    from feedd.pack.pack_run import PackRun


@dataclass(frozen=True, slots=True)
class RayJob:
    """What every task is told.

    Attributes:
        access: access to the stores.
        target_url: URL of the destination.
        plan: digest of the plan.
    """

    access: SourceOptions
    target_url: str
    plan: str


async def make_on_ray(run: PackRun, frozen: FrozenSource, part: ShardPart, job: RayJob) -> None:
    """Write the shards of a part that are not there yet, on the cluster of ``$RAY_ADDRESS``, or on this machine.

    Raises:
        What ``run_on_ray`` raises, and ``ShardBuilder.build`` for the first shard that fails.
    """

    async def done(shard: int, record: ShardRecord) -> None:
        run.note(shard, record)

    work = RayWork(make_shard, job, lambda shard: f"shard {shard}", job.target_url, "pack")
    await run_on_ray(work, run.begin(frozen, part), done)


def make_shard(job: RayJob, shard: int) -> ShardRecord | FeeddError:
    """Write one shard; return its record, or the error, which Ray need not try again."""
    try:
        return asyncio.run(_built(job, shard))
    except FeeddError as error:
        return error


async def _built(job: RayJob, shard: int) -> ShardRecord:
    async with Sources(job.access, NullRecorder(), SystemClock()) as sources:
        target = destination(sources, job.target_url)
        frozen = _known(job.plan)
        if not frozen:
            frozen.append(parse(await target.read(PLAN_NAME) or b"", f"{target.url}{PLAN_NAME}"))
        return await ShardBuilder(sources, target, frozen[0], writer_of(frozen[0].options.format)).build(shard)


@functools.cache
def _known(plan: str) -> list[Any]:  # noqa: ARG001 - the key of the cache
    """Return where a worker process keeps a plan."""
    return []
