"""What this daemon measures of itself while it waits for peers."""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvloop

from feedd.flow.loop_thread import LoopThread
from feedd.peers.delay_meter import DelayMeter
from tests.budget import PATIENT_S

TIMEOUT_S = 0.02


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Let libuv make what it keeps for the whole process before anybody counts descriptors."""
    uvloop.run(asyncio.sleep(0))


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def test_a_limit_that_has_grown_is_kept() -> None:
    """The limit is computed again before a wait is given up."""
    meter, limits = DelayMeter(TIMEOUT_S), iter([0.001])
    async with meter.within(lambda began_s: began_s + next(limits, 60.0)):
        await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        async with meter.within(lambda began_s: began_s + 0.001):
            await asyncio.sleep(60.0)


async def test_a_blocked_thread_extends_the_limit() -> None:
    """If the thread that serves peers is late here, it may be late at a peer."""
    meter, blocked = DelayMeter(TIMEOUT_S), threading.Event()
    async with LoopThread("test") as thread, asyncio.timeout(PATIENT_S):
        meter.server_loop = await thread.run(_loop)
        thread.post(blocked.wait, 20.0)
        with meter.measuring():
            while meter.silence_s() < meter.delays.longest_s:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.001)
        blocked.set()


async def test_a_closed_loop_is_left_alone() -> None:
    """When the daemon stops, its thread is gone before its last requests."""
    meter, errors = DelayMeter(TIMEOUT_S), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with LoopThread("test") as thread:
        meter.server_loop = await thread.run(_loop)
    with meter.measuring():
        await asyncio.sleep(2 * TIMEOUT_S)
    assert not errors


def test_a_tick_that_is_due_at_once() -> None:
    """On uvloop, the daemon's loop, the handle of such a timer does not tell its time."""

    async def run() -> None:
        meter = DelayMeter(1e-9)
        with meter.measuring():
            for _ in range(10):
                assert meter.silence_s() > 0
                await asyncio.sleep(0)

    uvloop.run(run())
