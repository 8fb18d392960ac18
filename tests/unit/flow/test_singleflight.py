"""Single flight: one run however many ask."""

from __future__ import annotations

import asyncio

import pytest

from feedd.errors import Draining
from feedd.flow.singleflight import SingleFlight


class Work:
    """Counts its runs; ends when told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.runs += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return self.runs


async def test_many_callers_one_run() -> None:
    """A hundred callers at once share one run and its result."""
    work = Work()
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
        calls = [asyncio.ensure_future(flights.do("key", work)) for _ in range(100)]
        await asyncio.sleep(0)
        work.go.set()
        assert await asyncio.gather(*calls) == [1] * 100
        assert await flights.do("key", work) == 2  # a finished run is not a cache
        assert len(flights) == 0


async def test_keys_are_apart() -> None:
    """Runs of different keys have nothing to do with each other."""
    one, two = Work(), Work()
    two.go.set()
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
        waiting = asyncio.ensure_future(flights.do("one", one))
        assert await flights.do("two", two) == 1
        assert not waiting.done()
        one.go.set()
        assert await waiting == 1


async def test_cancelled_leader_leaves_the_run_to_others() -> None:
    """The caller who started the run may be cancelled without harm to the others."""
    work = Work()
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
        leader, other = (asyncio.ensure_future(flights.do("key", work)) for _ in range(2))
        await asyncio.sleep(0)
        leader.cancel()
        await asyncio.wait([leader])
        work.go.set()
        assert await other == 1
        assert leader.cancelled()


async def test_last_one_to_leave_cancels_and_a_newcomer_starts_anew() -> None:
    """A run nobody wants is cancelled, and who asks while it is dying gets a run of its own."""
    work = Work()
    ended: list[BaseException | None] = []
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group, lambda _, error: ended.append(error))
        first = flights.join("key", work)
        await asyncio.sleep(0)
        assert flights.leave(first) is True
        second = flights.join("key", work)
        assert second is not first
        work.go.set()
        assert await second.result == 2
        assert flights.leave(second) is False
    assert work.cancelled == 1
    assert [type(error) for error in ended] == [Draining, type(None)]


async def test_end_is_reported_even_without_a_first_step() -> None:
    """A run cancelled before it began still ends, once, so that what was reserved for it is given back."""
    work = Work()
    ended: list[BaseException | None] = []
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group, lambda _, error: ended.append(error))
        flights.leave(flights.join("key", work))
    assert work.runs == 0
    assert len(ended) == 1


async def test_failure_is_shared_and_not_kept() -> None:
    """All who joined get the error, nobody later does, and the group of tasks goes on."""
    work = Work()
    work.error = ValueError("no")
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
        calls = [asyncio.ensure_future(flights.do("key", work)) for _ in range(3)]
        await asyncio.sleep(0)
        work.go.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError] * 3
        work.error = None
        assert await flights.do("key", work) == 2


async def test_books_are_closed_before_anybody_wakes() -> None:
    """``ended`` has run when the first waiter continues."""
    work = Work()
    work.go.set()
    ended: list[str] = []
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group, lambda key, _: ended.append(key))
        await flights.do("key", work)
        assert ended == ["key"]


async def test_cancel_all_is_an_error_for_those_who_wait() -> None:
    """When the owner closes, waiters get an error they can act on, not a cancellation that is not theirs."""
    work = Work()
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
        waiting = asyncio.ensure_future(flights.do("key", work))
        await asyncio.sleep(0)
        await flights.cancel_all()
        with pytest.raises(Draining):
            await waiting
        await flights.cancel_all()
        assert len(flights) == 0


async def test_a_group_that_is_over_starts_nothing() -> None:
    """Whoever comes after the owner's group has ended is told so at once, the second as the first."""
    work = Work()
    async with asyncio.TaskGroup() as group:
        flights: SingleFlight[str, int] = SingleFlight(group)
    for _ in range(2):
        with pytest.raises(Draining, match="closing"):
            await asyncio.wait_for(flights.do("key", work), 5)
    await asyncio.wait_for(flights.cancel_all(), 5)
    assert (len(flights), work.runs) == (0, 0)
