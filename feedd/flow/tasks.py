"""Runs calls concurrently and raises the first error unwrapped."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from feedd.flow.pools import CPU

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from feedd.errors import FeeddError

_T = TypeVar("_T")
_U = TypeVar("_U")

INLINE_BYTES: Final = 1 << 19
"""Processing this many bytes a few times takes about as long as a thread call, some tenths of a millisecond."""


async def run_all(calls: Iterable[Coroutine[object, object, _T]]) -> list[_T]:
    """Run all calls concurrently and return their results in order.

    The first failure cancels the others and is raised unwrapped, with its own cause. If the caller is cancelled, it
    gets that cancellation, whatever the calls do.
    """
    async with unwrapped_group() as group:
        tasks = [group.create_task(call) for call in calls]
        if tasks:
            await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def both(one: Coroutine[object, object, _T], other: Coroutine[object, object, _U]) -> tuple[_T, _U]:
    """Run two calls of different types concurrently, as ``run_all`` does."""
    async with unwrapped_group() as group:
        first, second = group.create_task(one), group.create_task(other)
        await asyncio.wait((first, second))
    return first.result(), second.result()


@asynccontextmanager
async def unwrapped_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Run the body in a task group that raises its first failure instead of a group of failures.

    The body waits for its tasks, because a failure while the group itself waits would leave the caller marked as
    cancelled.
    """
    me = asyncio.current_task()
    assert me is not None
    cancels_before = me.cancelling()
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        failure = first_of(failures)
    if failure is not None:
        try:
            if me.cancelling() > cancels_before:  # a task group with failures of its own loses the outer cancellation
                raise asyncio.CancelledError from failure
            raise failure
        finally:
            del failure  # otherwise its traceback, which holds this frame, would wait for the garbage collector


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception that is not itself a group."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def within(deadline_s: float | None, late: Callable[[], FeeddError]) -> AsyncIterator[asyncio.Timeout]:
    """End the body at a deadline with ``late()`` instead of ``TimeoutError``; yields the timeout, which can be moved.

    A ``TimeoutError`` of the body itself, for example from a system call (``ETIMEDOUT``), is not changed.

    Args:
        deadline_s: seconds from now; None: no deadline until it is moved.
        late: returns the error.
    """
    scope = asyncio.timeout(deadline_s)
    try:
        async with scope:
            yield scope
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise late() from error


async def run_to_end(job: asyncio.Future[_T], stop: threading.Event | None = None) -> _T:
    """Wait for work in a thread even if cancelled, because it uses the caller's memory; ``stop`` is set then.

    Raises:
        Whatever the work raised. CancelledError: this call was cancelled; the work's result is dropped.
    """
    cancelled: asyncio.CancelledError | None = None
    while not job.done():
        try:
            await asyncio.wait([job])
        except asyncio.CancelledError as error:
            cancelled = error
            if stop is not None:
                stop.set()
    if cancelled is not None:
        job.exception()  # retrieved, so that asyncio does not log it
        raise cancelled
    return job.result()


async def off_loop(work: Callable[[], _T], size_bytes: int) -> _T:
    """Run work on ``size_bytes`` of memory: inline if few, else in a thread; waits for its end even if cancelled.

    Raises:
        Whatever the work raised. CancelledError: see ``run_to_end``.
    """
    if size_bytes <= INLINE_BYTES:
        return work()
    return await run_to_end(CPU.begin(work))
