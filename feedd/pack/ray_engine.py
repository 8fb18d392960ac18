"""Writes the shards of a pack as Ray tasks, one for each shard. The only module that imports Ray.

A task is told the number of its shard and reads the plan from the destination, once per worker process. So Ray may run
a task again, on any node, and the shard stays the same. Only records travel through Ray, no data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.pack_names import PLAN_NAME
from feedd.errors import FeeddError, Unsupported, WorkerLost
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

_TASKS_MAX: Final = 1000  # waiting tasks let a cluster grow
_RETRIES: Final = 5


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
        Unsupported: Ray is not installed.
        WorkerLost: Ray gave up a task.
        What ``ShardBuilder.build`` raises, for the first shard that fails.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unsupported("expected ray, got no such package", hint="pip install 'feedd[ray]'", stage="pack") from error
    with contextlib.redirect_stdout(sys.stderr):  # ray prints about lost nodes, and standard output is for results
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="error")
        try:
            await _make_all(run, run.begin(frozen, part), job, ray)
        finally:
            ray.shutdown()


async def _make_all(run: PackRun, shards: range, job: RayJob, ray: Any) -> None:  # noqa: ANN401 - a module
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(make_shard)
    left = iter(shards)

    async def work() -> None:
        for shard in left:  # the iterator is shared: each coroutine takes the next shard
            try:
                built: ShardRecord | FeeddError = await task.remote(job, shard)
            except ray.exceptions.RayError as error:
                raise WorkerLost(
                    f"ray gave up shard {shard}: {' '.join(str(error).split())}",
                    object=job.target_url,
                    hint="run the command again to continue",
                    stage="pack",
                ) from error
            if isinstance(built, FeeddError):
                raise built
            run.note(shard, built)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_TASKS_MAX, len(shards))):
            group.create_task(work())


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
