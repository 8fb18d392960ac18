"""Whom a stream waited for: what a verdict about the bottleneck rests on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.serve.stream_meter import StreamMeter
from tests.fakes.backend import FakeScript
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
from tests.unit.serve.raw_client import serving

if TYPE_CHECKING:
    from pathlib import Path


async def test_each_moment_is_told_to_whom_it_belongs() -> None:
    """Idle while a batch is made waits for the batch, idle without one for the trainer, and writing for neither."""
    clock, recorder = TimelessClock(), TallyRecorder()
    meter = StreamMeter(recorder, clock)
    for duration_s, idle, making in ((2.0, True, True), (3.0, False, True), (5.0, False, False), (7.0, True, False)):
        await clock.sleep_s(duration_s)  # of what was marked before; at first there is nothing to send or make
        meter.mark(idle=idle, making=making)
    await clock.sleep_s(11.0)
    meter.mark(idle=False, making=False)
    meter.flush()
    assert recorder.total(metrics.SERVE_CREDIT_WAIT) == 2.0 + 11.0
    assert recorder.total(metrics.SERVE_BATCH_WAIT) == 3.0


async def test_waits_are_told_while_the_stream_goes_on() -> None:
    """A long wait is told at the next mark, and not again when the stream ends."""
    clock, recorder = TimelessClock(), TallyRecorder()
    meter = StreamMeter(recorder, clock)
    await clock.sleep_s(60.0)
    meter.mark(idle=True, making=True)
    assert recorder.total(metrics.SERVE_CREDIT_WAIT) == 60.0
    meter.flush()
    assert recorder.total(metrics.SERVE_CREDIT_WAIT) == 60.0


async def test_a_trainer_that_takes_nothing_is_what_a_stream_waits_for(short_dir: Path) -> None:
    """Without credits the wait is the trainer's, however long; the bytes of what it then takes are counted."""
    async with serving(short_dir, FakeScript(steps=3)) as rig:
        opened = await rig.open(prefetch_batches=2)
        stream = await rig.stream(opened.session_id, inline_only=True)
        await asyncio.sleep(0.4)
        await stream.send(credits=8)
        await stream.finish()
        assert rig.recorder.total(metrics.SERVE_CREDIT_WAIT) >= 0.3
        sent_bytes = sum(len(payload) for payload in stream.payloads.values())
        assert sent_bytes > 0
        assert rig.recorder.total(metrics.SERVE_BATCH_BYTES, transport="inline") == sent_bytes
