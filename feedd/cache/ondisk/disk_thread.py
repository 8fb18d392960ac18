"""Disk work off the event loop, in the order in which it was decided."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from feedd.flow.pools import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class DiskThread:
    """One thread for everything that changes the directory, and a few for looking at it.

    The single changing thread is what keeps the disk in step with the index without a lock: an evicted file is
    unlinked before any space decided on later is allocated, and before a later fill of the same object is renamed
    into its place. A job once handed over always runs, whatever becomes of the task that waits for it. The threads are
    daemon threads: a disk that hangs does not keep the process from ending.
    """

    def __init__(self, failed: Callable[[BaseException], None], look_threads: int = 4) -> None:
        self._failed = failed
        self._changes = Pool("cache-changes", 1)
        self._looks = Pool("cache-looks", look_threads)
        self._closed = False

    async def change(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` after all changes handed over before; cancelling the wait does not cancel the job."""
        return await asyncio.shield(self._changes.begin(job, *args, **kwargs))

    def post(self, job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Hand a change over without waiting for it; an exception goes to ``failed`` on the loop.

        Dropped after ``close``: what it would have removed is found by the next start's scan.
        """
        if self._closed:
            return

        def report(done: asyncio.Future[object]) -> None:
            error = done.exception()
            if error is not None:
                self._failed(error)

        self._changes.begin(job, *args, **kwargs).add_done_callback(report)

    async def look(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job``, which changes nothing, without waiting for changes."""
        return await asyncio.shield(self._looks.begin(job, *args, **kwargs))

    async def close(self, deadline_s: float) -> None:
        """Let all changes handed over finish, then end the threads; those stuck for longer are left to themselves."""
        if self._closed:
            return
        self._closed = True
        idle = False
        try:
            async with asyncio.timeout(deadline_s):
                await self.change(lambda: None)
                await self.look(lambda: None)
                idle = True
        except TimeoutError:
            self._failed(TimeoutError("expected the disk to finish its work, got nothing from it"))
        finally:
            # Busy threads end by themselves: the disk hangs, or we are cancelled.
            self._changes.close(wait=idle)
            self._looks.close(wait=idle)
