"""Iterators that run in a thread: errors, back-pressure, and no thread left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.fetch.threaded import iterate_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def _alive() -> bool:
    return any(thread.name == "t-iterate" for thread in threading.enumerate())


async def test_items_come_in_order_from_another_thread() -> None:
    """All items arrive in order, made elsewhere."""

    async def make() -> AsyncGenerator[tuple[int, str], None]:
        for index in range(100):
            await asyncio.sleep(0)
            yield index, threading.current_thread().name

    items = [item async for item in iterate_in_thread(make, name="t-iterate", ahead_count=3)]
    assert items == [(index, "t-iterate") for index in range(100)]
    assert not _alive()


async def test_error_comes_out_unchanged() -> None:
    """What the iterator raises is raised here, after the items before it."""
    error = KeyError("inside")

    async def make() -> AsyncGenerator[int, None]:
        yield 1
        raise error

    items = iterate_in_thread(make, name="t-iterate", ahead_count=1)
    assert await anext(items) == 1
    with pytest.raises(KeyError) as caught:
        await anext(items)
    assert caught.value is error
    assert not _alive()


async def test_producer_waits_for_its_consumer() -> None:
    """The thread is never more than so many items ahead."""
    made = 0

    async def make() -> AsyncGenerator[int, None]:
        nonlocal made
        while True:
            made += 1
            yield made

    async with contextlib.aclosing(iterate_in_thread(make, name="t-iterate", ahead_count=2)) as items:
        for expected in range(1, 20):
            assert await anext(items) == expected
            assert made <= expected + 4  # two handed over, one in hand, one being made
    assert not _alive()


@pytest.mark.parametrize("turns", [0, 1, 2, 20])
async def test_cancelled_consumer_ends_the_thread(turns: int) -> None:
    """However early the consumer is cancelled, the iterator is closed and its thread ends."""
    closed = threading.Event()
    begun = threading.Event()

    async def make() -> AsyncGenerator[int, None]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            closed.set()

    async def consume() -> None:
        async with contextlib.aclosing(iterate_in_thread(make, name="t-iterate", ahead_count=1)) as items:
            await anext(items)

    task = asyncio.ensure_future(consume())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _alive()
    assert closed.is_set() == begun.is_set()
