"""Decode workers for commands that may not need them: the first call starts them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from feedd.workers.pool import DecodePool

if TYPE_CHECKING:
    from feedd.protocols import Recorder
    from feedd.tables.task import ConvertedShard, MakeTask, MissingRanges
    from feedd.workers.work import DecodeOptions


class PoolOnDemand:
    """Converts shards as a ``DecodePool`` does; an async context manager."""

    def __init__(self, options: DecodeOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._group = asyncio.TaskGroup()
        self._pool: asyncio.Future[DecodePool] | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop the workers if they were started."""
        self._closing.set()
        await self._group.__aexit__(None, None, None)

    async def make(self, task: MakeTask) -> ConvertedShard | MissingRanges:
        """Convert a shard; see ``DecodePool.make``.

        Raises in addition:
            ResourceExhausted, WorkerLost: workers cannot be started.
        """
        if self._pool is None:
            self._pool = asyncio.get_running_loop().create_future()
            self._group.create_task(self._employ(self._pool))
        await asyncio.wait([self._pool])
        return await self._pool.result().make(task)

    async def _employ(self, ready: asyncio.Future[DecodePool]) -> None:
        """Open and close the pool in one task."""
        try:
            async with DecodePool(self._options, self._recorder) as pool:
                ready.set_result(pool)
                await self._closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
            ready.exception()  # marks it as retrieved; each waiting call raises it
        except BaseException:
            ready.cancel()
            raise
