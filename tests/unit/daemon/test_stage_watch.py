"""What waits between the stages, as the daemon looks at it twice a second."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from feedd import metrics
from feedd.catalog.sources import Scheduled
from feedd.daemon.stage_watch import PERIOD_S, StageWatch
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock


class Rig:
    """Stages and streams that hold what a test says."""

    def __init__(self) -> None:
        self.recorder = TallyRecorder()
        self.buckets = SimpleNamespace(transfer_busy_s=0.0)
        self.sources = SimpleNamespace(scheduled=Scheduled(0, 0, 0), buckets=self.buckets)
        self.sessions = SimpleNamespace(streams=[])
        sources: Any = self.sources
        sessions: Any = self.sessions
        self.watch = StageWatch(self.recorder, sources, sessions)

    def of(self, queue: str) -> tuple[float, float, float]:
        """Return items, bytes and the time that the queue was not empty."""
        kinds = (metrics.QUEUE_ITEMS, metrics.QUEUE_BYTES, metrics.QUEUE_NONEMPTY)
        items, size_bytes, nonempty_s = (self.recorder.total(kind, queue=queue) for kind in kinds)
        return items, size_bytes, nonempty_s


def test_each_queue_shows_what_waits_in_it() -> None:
    """Items and bytes are those of the last look; the time counts only while anything waits."""
    rig = Rig()
    rig.sources.scheduled = Scheduled(3, 4096, 0)
    rig.sessions.streams = [SimpleNamespace(ready_sizes=[100, 50], credit_count=2)] * 2
    rig.watch.look(0.5)
    seen = {queue: rig.of(queue) for queue in ("parts", "batches", "credits")}
    assert seen == {
        "parts": (3, 4096, 0.5),
        "batches": (4, 300, 0.5),
        "credits": (4, 0, 0.5),
    }
    rig.sources.scheduled, rig.sessions.streams = Scheduled(0, 0, 0), []
    rig.watch.look(0.5)
    assert {queue: rig.of(queue) for queue in seen} == dict.fromkeys(seen, (0, 0, 0.5))


def test_busy_time_of_fetches_is_counted() -> None:
    """Parts in flight make the stage busy; of the threads' time each second is counted once."""
    rig = Rig()
    rig.sources.scheduled, rig.buckets.transfer_busy_s = Scheduled(0, 0, 1), 0.25
    rig.watch.look(0.5)
    rig.sources.scheduled = Scheduled(1, 10, 0)
    rig.watch.look(0.5)
    assert rig.recorder.total(metrics.FETCH_BUSY) == 0.5
    assert rig.recorder.total(metrics.FETCH_TRANSFER_BUSY) == 0.25


async def test_the_time_between_looks_is_measured() -> None:
    """A look counts for the time since the last one, also after a late wake-up."""
    rig = Rig()
    rig.sources.scheduled = Scheduled(1, 1, 0)

    class Late(TimelessClock):
        async def sleep_s(self, duration_s: float) -> None:
            if len(self.sleeps_s) == 2:
                raise asyncio.CancelledError
            await super().sleep_s(duration_s)
            self.now_s += 1.0

    with pytest.raises(asyncio.CancelledError):
        await rig.watch.watch(Late())
    assert rig.of("parts")[2] == 2 * (PERIOD_S + 1.0)
