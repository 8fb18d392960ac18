"""Simulated workers: chunks by the daemon's rules, and the time of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.simulation.simulated_workers import SimulatedWorkers
from feedd.simulation.virtual_loop import run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def _ends(
    worker_count: int, work: Callable[[SimulatedWorkers], list[Coroutine[None, None, None]]], first_s: float = 0.0
) -> tuple[list[float], float]:
    """Begin all work at once; return when each ended, and the busy time of all."""
    workers: list[SimulatedWorkers] = []

    async def timed(one: Coroutine[None, None, None]) -> float:
        await one
        return asyncio.get_running_loop().time()

    async def run() -> list[float]:
        workers.append(SimulatedWorkers(worker_count, first_s))
        return list(await asyncio.gather(*map(timed, work(workers[0]))))

    return run_in_virtual_time(run()), workers[0].busy_s


def test_idle_workers_share_a_batch() -> None:
    """32 rows of a second each: a quarter for each of four workers."""
    assert _ends(4, lambda workers: [workers.decode(1, 32, 1.0)]) == ([8.0], 32.0)


def test_a_batch_that_waits_goes_to_one_worker() -> None:
    """Both workers share the first batch; the next two are a message each."""
    ends, _ = _ends(2, lambda workers: [workers.decode(1, 32, 1.0) for _ in range(3)])
    assert ends == [16.0, 48.0, 48.0]


def test_ranks_take_turns() -> None:
    """A worker holds four batches of the first rank; then both ranks get a turn."""
    ends, _ = _ends(1, lambda workers: [workers.decode(1 + (n == 6), 32, 1.0) for n in range(7)])
    assert ends == [32.0 * n for n in (1, 2, 3, 4, 5, 7, 6)]


def test_messages_grow_if_rows_are_quick() -> None:
    """256 unknown rows are 8 messages for two workers. Then 125 rows take an eighth of a second: 3 messages."""

    async def twice(workers: SimulatedWorkers) -> None:
        await workers.decode(1, 256, 0.001)
        assert asyncio.get_running_loop().time() == pytest.approx(0.128)
        await workers.decode(1, 256, 0.001)

    ends, _ = _ends(2, lambda workers: [twice(workers)])
    assert ends == pytest.approx([0.128 + 0.086 + 0.084])


def test_the_first_rows_of_each_worker_take_longer() -> None:
    """Indexes are no rows; one worker of two decodes all, so the other one's first rows are still to come."""
    ends, busy_s = _ends(2, lambda workers: [workers.index(1.0), workers.decode(1, 8, 1.0)], first_s=3.0)
    assert (ends, busy_s) == ([1.0, 11.0], 12.0)
    ends, busy_s = _ends(1, lambda workers: [workers.decode(1, 8, 1.0) for _ in range(2)], first_s=3.0)
    assert (ends, busy_s) == ([11.0, 19.0], 19.0)


def test_work_without_time_ends_at_once() -> None:
    """A model may leave decoding and indexes out."""
    assert _ends(1, lambda workers: [workers.decode(1, 8, 0.0), workers.index(0.0)], first_s=3.0) == ([0.0, 0.0], 0.0)
