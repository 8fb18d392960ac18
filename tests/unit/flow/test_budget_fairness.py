"""The byte budget: order, over-sized requests, cancellation at awkward moments."""

from __future__ import annotations

import asyncio

import pytest

from feedd.flow.budget import ByteBudget


async def _hold(budget: ByteBudget, size_bytes: int, order: list[int], release: asyncio.Event) -> None:
    async with budget.reserve(size_bytes):
        order.append(size_bytes)
        await release.wait()


async def test_small_does_not_overtake_large() -> None:
    """A request that would fit waits behind an earlier one that does not."""
    budget, order, release = ByteBudget(10), list[int](), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for size_bytes in (6, 5, 1):
            tasks.create_task(_hold(budget, size_bytes, order, release))
        await asyncio.sleep(0)
        assert (order, budget.reserved_bytes, budget.waiting_count) == ([6], 6, 2)
        release.set()
    assert order == [6, 5, 1]
    assert (budget.reserved_bytes, budget.waiting_count) == (0, 0)


async def test_oversized_request_goes_alone() -> None:
    """A request beyond the limit is granted once nothing else is held, and then nothing else is."""
    budget, order, release = ByteBudget(10), list[int](), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        async with budget.reserve(3):
            tasks.create_task(_hold(budget, 50, order, release))
            tasks.create_task(_hold(budget, 1, order, release))
            await asyncio.sleep(0)
            assert order == []
        await asyncio.sleep(0)
        assert (order, budget.reserved_bytes, budget.waiting_count) == ([50], 50, 1)
        release.set()
    assert order == [50, 1]
    assert budget.reserved_bytes == 0


async def test_cancelled_head_lets_the_next_in() -> None:
    """When the first in line gives up, those behind it are looked at again."""
    budget, order, release = ByteBudget(10), list[int](), asyncio.Event()
    async with budget.reserve(6):
        large = asyncio.ensure_future(_hold(budget, 9, order, release))
        small = asyncio.ensure_future(_hold(budget, 2, order, release))
        await asyncio.sleep(0)
        assert order == []
        large.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [2]
        release.set()
        await small
    assert budget.reserved_bytes == 0


async def test_grant_and_cancellation_in_the_same_turn() -> None:
    """A waiter cancelled in the turn it was granted hands the bytes on."""
    budget, order, release = ByteBudget(10), list[int](), asyncio.Event()
    release.set()
    async with budget.reserve(10):
        first = asyncio.ensure_future(_hold(budget, 10, order, release))
        second = asyncio.ensure_future(_hold(budget, 10, order, release))
        await asyncio.sleep(0)
    first.cancel()  # granted by the release above, not yet run
    await second
    assert first.cancelled() or first.cancelling()
    assert order == [10]
    assert (budget.reserved_bytes, budget.waiting_count) == (0, 0)


async def test_body_error_releases() -> None:
    """An exception in the body gives the bytes back."""
    budget = ByteBudget(10)
    with pytest.raises(RuntimeError, match="boom"):
        async with budget.reserve(4):
            raise RuntimeError("boom")
    assert budget.reserved_bytes == 0


async def test_nonsense_is_refused() -> None:
    """A budget of nothing and a negative request are refused."""
    with pytest.raises(ValueError, match="1 or more"):
        ByteBudget(0)
    with pytest.raises(ValueError, match="0 or more"):
        await ByteBudget(1).reserve(-1).__aenter__()
