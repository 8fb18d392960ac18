from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from feedd.errors import Internal
from feedd.workers.dispatch import Dispatch, Pending
from feedd.workers.messages import Packet
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
    assert dispatch.spread(7, 7, 57_000) == 7
    assert dispatch.spread(7, 7, 147_000_000) == 2  # of four idle workers, each gets large rows
    assert dispatch.spread(8, 32, 3 << 20) == 3
    assert dispatch.spread(256, 32) == 32
    dispatch._schedule.submit(Call(), 3, 1)
    while dispatch._schedule.assign():
        pass
    assert dispatch.spread(24, 32) == 24  # one is idle
    assert dispatch.spread(32, 32) == 32


async def test_an_answer_of_another_kind_fails_its_call_at_once() -> None:
    """Nobody waits for ever for a worker that answers nonsense; the caller of ``answer`` then ends the worker."""
    dispatch = Dispatch(DecodeOptions(), TallyRecorder())
    worker: Any = SimpleNamespace(pid=1, ending="", send=lambda *_: None, kill=lambda *_: None)
    dispatch.join(0, worker)
    for raised in (AssertionError(), IndexError(), ValueError("x")):
        accept = Mock(side_effect=raised)
        work: Any = SimpleNamespace(stream=0, long_s=0.0, packet=lambda *_: Packet(b""), accept=accept)
        call = Pending(work)
        dispatch._calls.add(call)
        dispatch._schedule.submit(call, 4, 4)
        dispatch._pump()
        running = dispatch._schedule.running(0)
        assert running is not None
        answer: Any = SimpleNamespace(id=running.id, busy_s=0.0)
        with pytest.raises(Internal, match="expected an answer to the request"):
            dispatch.answer(0, answer, [])
        assert call.done.done()
        assert isinstance(call.error, Internal)
    dispatch.leave(0)
