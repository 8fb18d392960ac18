"""Heartbeats on a stream: sent to clients that asked for them, while they wait for a batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd import metrics
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import attach, release, serving

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_client_that_waits_hears_what_for(short_dir: Path) -> None:
    """While a batch is made, heartbeats come one after the other and name the stage; the batch follows them."""
    script = FakeScript(gates={0: asyncio.Event()})
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=2)
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True, heartbeat_ms=50)
        while len(stream.heartbeats) < 8:  # waits are reported every quarter of a second
            assert await stream.read()
        assert set(stream.heartbeats) == {"decoding"}
        assert rig.recorder.total(metrics.SERVE_BATCH_WAIT) > 0, "a wait counts while it lasts"
        assert not stream.batches
        script.gates[0].set()
        await stream.until(1)
        stream.call.cancel()


async def test_a_client_without_a_free_slot_hears_that_it_waits_for_space(short_dir: Path) -> None:
    """A client that asks for a batch and holds every slot is told that room is missing."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=1)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=2, heartbeat_ms=50)
        await stream.until(1)
        while not stream.heartbeats:
            assert await stream.read()
        assert stream.heartbeats == ["space"]
        await stream.send(releases=[release(stream.batches[0])])
        await stream.until(2)
        stream.call.cancel()
        arena.close()


async def test_who_did_not_ask_or_does_not_wait_hears_nothing(short_dir: Path) -> None:
    """An older client, which names no period, and a client that asked for no batch are sent no heartbeat."""
    script = FakeScript(gates={0: asyncio.Event()})
    async with serving(short_dir, script) as rig:
        beating = await rig.open(prefetch_batches=2)
        beats = await rig.stream(beating.session_id, credits=1, inline_only=True, heartbeat_ms=50)
        silent = [await rig.open(prefetch_batches=2) for _ in range(2)]
        old = await rig.stream(silent[0].session_id, credits=1, inline_only=True)
        idle = await rig.stream(silent[1].session_id, credits=0, inline_only=True, heartbeat_ms=50)
        while len(beats.heartbeats) < 4:  # so many periods have passed for all three
            assert await beats.read()
        await idle.finish()
        assert not idle.heartbeats
        script.gates[0].set()
        await old.until(1)
        assert not old.heartbeats
        for stream in (beats, old):
            stream.call.cancel()
