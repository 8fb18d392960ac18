"""Windows sorted once, in the background where somebody may need them later."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.catalog.window_sorting import Sorting
from feedd.flow.tasks import both
from feedd.ordering.sorted_windows import NeedOrder, WindowName
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.ordering.sorted_windows import WindowRows

_LARGE, _SMALL = 1 << 20, 1 << 10
_NAME = WindowName(0, 0, 1)


class _Job:
    """A window to sort; ``go`` lets it end."""

    def __init__(self, size_bytes: int = _LARGE, *, fails: bool = False) -> None:
        self.go = threading.Event()
        self.sorted = 0
        self.learned = 0
        self._fails = fails
        self.need = NeedOrder((1, _NAME), self._sort, size_bytes, self._learn)

    def _sort(self) -> dict[WindowName, WindowRows]:
        assert self.go.wait(PATIENT_S)
        self.sorted += 1
        if self._fails:
            raise MemoryError
        return {_NAME: (np.zeros(1, np.int64), np.zeros(1, np.int64))}

    def _learn(self, found: Mapping[WindowName, WindowRows]) -> None:
        assert list(found) == [_NAME]
        self.learned += 1


async def test_a_window_begun_ahead_is_waited_for_and_not_sorted_twice() -> None:
    """Whoever needs it while it is being sorted takes part in that."""
    async with asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as group:
        sorting, job = Sorting(group), _Job()
        sorting.begin(job.need)
        sorting.begin(job.need)
        waiting = group.create_task(sorting.sort(job.need))
        await asyncio.sleep(0)
        job.go.set()
        await waiting
        assert job.sorted == 1
        assert job.learned >= 1
        await sorting.close()


async def test_little_is_sorted_when_it_is_needed() -> None:
    """A small window is nothing to begin with; it is sorted at once by whoever needs it."""
    async with asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as group:
        sorting, job = Sorting(group), _Job(_SMALL)
        job.go.set()
        sorting.begin(job.need)
        assert job.sorted == 0
        await sorting.sort(job.need)
        assert (job.sorted, job.learned) == (1, 1)
        await sorting.close()


async def test_what_fails_ahead_is_nobodys_error() -> None:
    """Whoever needs the window is told, and nobody else."""
    async with asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as group:
        sorting, job = Sorting(group), _Job(fails=True)
        sorting.begin(job.need)
        with pytest.raises(MemoryError):
            await both(sorting.sort(job.need), asyncio.to_thread(job.go.set))
        assert (job.sorted, job.learned) == (1, 0)
        await asyncio.sleep(0)  # the daemon, whose group this is, goes on
        await sorting.close()


async def test_closing_waits_for_threads() -> None:
    """What is being sorted when it closes ends first: it uses a reader's arrays."""
    async with asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as group:
        sorting, job = Sorting(group), _Job()
        sorting.begin(job.need)
        await asyncio.sleep(0.01)
        closing = group.create_task(sorting.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        job.go.set()
        await closing
        assert (job.sorted, job.learned) == (1, 0)
    sorting.begin(job.need)  # its owner is gone: nothing happens
    assert job.sorted == 1
