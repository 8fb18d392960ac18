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
    """One thread for everything that changes the directory, and a few for reading it.

    The single changing thread keeps the disk in step with the index without a lock. An evicted file is unlinked before
    later space is allocated, and before a later fill of the same object is renamed. A job that was handed over always
    runs, even if the waiting task ends. The threads are daemon threads, so a hanging disk does not keep the process
    from ending.
    """

    def __init__(self, failed: Callable[[BaseException], None], look_threads: int = 4) -> None:
        self._failed = failed
        self._changes = Pool("cache-changes", 1)
        self._looks = Pool("cache-looks", look_threads)
        self._closed = False

    async def change(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``job`` after all changes handed over before; cancelling the wait does not cancel the job."""
        return await _shielded(self._changes.begin(job, *args, **kwargs))

    def post(self, job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Hand over a change without waiting for it; an exception goes to ``failed`` on the loop.

        After ``close`` the job is dropped; the next start's scan finds the files it would have removed.
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
        return await _shielded(self._looks.begin(job, *args, **kwargs))

    async def close(self, deadline_s: float) -> None:
        """Finish all changes handed over, then end the threads; threads stuck past the deadline are abandoned."""
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
            self._failed(TimeoutError("the disk did not finish its work in time"))
        finally:
            # Busy threads are not joined: the disk hangs, or this call was cancelled.
            self._changes.close(wait=idle)
            self._looks.close(wait=idle)


def _shielded(job: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future of a job that runs on if the wait is cancelled; its error then belongs to nothing any more.

    No coroutine may keep ``job`` in a variable: the traceback of a cancelled wait would hold its result, an open file.
    """
    job.add_done_callback(_retrieve)
    return asyncio.shield(job)


def _retrieve(job: asyncio.Future[T]) -> None:
    """Mark a job's error as read: asyncio logs errors without a reader as defects."""
    if not job.cancelled():
        job.exception()
