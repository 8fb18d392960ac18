"""Running calls side by side without hiding which error came first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

_T = TypeVar("_T")
_U = TypeVar("_U")


async def run_all(calls: Iterable[Coroutine[object, object, _T]]) -> list[_T]:
    """Run all calls at once; return their results in order.

    The first failure cancels the others and is raised as it is, not wrapped in a group.
    """
    tasks: list[asyncio.Task[_T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise first_of(failures) from failures
    return [task.result() for task in tasks]


async def both(one: Coroutine[object, object, _T], other: Coroutine[object, object, _U]) -> tuple[_T, _U]:
    """Run two calls of different kinds at once, as ``run_all`` does."""
    try:
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(one), group.create_task(other)
    except BaseExceptionGroup as failures:
        raise first_of(failures) from failures
    return first.result(), second.result()


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception that is not itself a group."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
