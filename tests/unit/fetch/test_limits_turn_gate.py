"""A gate lets so many in that the loop's turns stay short, in the order they came."""

from __future__ import annotations

import asyncio
import time

from feedd.fetch.limits import TurnGate, TurnLimit, TurnWatch
from tests.budget import PATIENT_S


async def _looked_at(gate: TurnGate, job_s: float, jobs: int) -> list[int]:
    """Have jobs compute so long each, answered by a loop that is never idle; return how many were in, each time."""
    inside, counts = 0, []

    async def job() -> None:
        nonlocal inside
        async with gate:
            inside += 1
            counts.append(inside)
            await asyncio.sleep(0)  # an answer that is there by the next turn
            until_s = time.thread_time() + job_s
            while time.thread_time() < until_s:
                pass
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(job())
    return counts


async def test_long_turns_leave_few_in() -> None:
    """Jobs of which each takes a turn of its own end up at the least there may be."""
    counts = await _looked_at(TurnGate(64, first=32, least=2), 0.004, 300)
    assert max(counts[:40]) == 32
    assert max(counts[-30:]) <= 4


async def test_jobs_that_cost_nothing_soon_have_all_places() -> None:
    """While the loop waits, the places double up to the most there may be."""
    gate = TurnGate(40, first=4, least=2)
    inside, most = 0, 0

    async def job() -> None:
        nonlocal inside, most
        async with gate:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(job())
    assert most == 40


async def test_places_are_given_in_the_order_of_arrival() -> None:
    """Who waits longest is next, also before one that comes while a place is free."""
    gate = TurnGate(1)
    order: list[int] = []

    async def job(number: int) -> None:
        async with gate:
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(job(number))
    assert order == list(range(5))


async def test_a_place_of_one_that_was_cancelled_is_not_lost() -> None:
    """Cancelled while it waits, or with a place it was just given: the next one goes on."""
    gate = TurnGate(1)
    async with gate:
        waiting = [asyncio.create_task(_pass(gate)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    waiting[1].cancel()  # it has been given the place, and has not run since
    await asyncio.wait(waiting)
    assert [one.cancelled() for one in waiting] == [True, True, False]
    async with asyncio.timeout(PATIENT_S), gate:
        pass


async def _pass(gate: TurnGate) -> None:
    async with gate:
        pass


async def test_nothing_is_looked_at_while_nothing_is_in_flight() -> None:
    """The timer ends with the last one in flight, and begins again with the next."""
    in_flight, looks = 1, 0
    twice = asyncio.Event()

    def looked() -> None:
        nonlocal looks
        looks += 1
        if looks % 2 == 0:
            twice.set()

    watch = TurnWatch(TurnLimit(8), lambda: in_flight, looked)
    for _ in range(2):
        in_flight = 1
        watch.begin()
        watch.begin()
        await twice.wait()
        in_flight = 0
        await asyncio.sleep(0.05)
        ended = looks
        await asyncio.sleep(0.05)
        assert looks == ended
        looks = 0
        twice.clear()
