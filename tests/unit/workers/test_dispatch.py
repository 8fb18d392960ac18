from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from feedd.workers.dispatch import Dispatch
from feedd.workers.schedule import Call
from feedd.workers.work import DecodeOptions
from tests.fakes.tally import TallyRecorder


def test_few_rows_are_spread_over_idle_workers() -> None:
    """A batch of one chunk goes to all workers that have nothing to do; where they are busy, and for many rows, not."""
    dispatch = Dispatch(DecodeOptions(), TallyRecorder())
    assert dispatch.spread(32, 32) == 32  # no worker yet
    worker: Any = SimpleNamespace(pid=1, send=lambda *_: None)
    for number in range(4):
        dispatch.join(number, worker)
    assert dispatch.spread(32, 32) == 8
    assert dispatch.spread(33, 32) == 9
    assert dispatch.spread(10, 32) == 8  # fewer are not worth a message
    assert dispatch.spread(4, 4) == 4
    assert dispatch.spread(256, 32) == 32
    dispatch._schedule.submit(Call(), 3, 1)
    while dispatch._schedule.assign():
        pass
    assert dispatch.spread(24, 32) == 24  # one is idle
    assert dispatch.spread(32, 32) == 32
