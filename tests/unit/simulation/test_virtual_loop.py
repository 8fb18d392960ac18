"""Virtual time: waits end at once and in order, and a wait that nothing ends is an error."""

from __future__ import annotations

import asyncio

import pytest

from feedd.simulation.virtual_loop import VirtualClock, run_in_virtual_time


def test_waits_end_in_the_order_of_their_lengths() -> None:
    """An hour of waiting passes on the clock only; the shorter wait ends first."""
    ended: list[tuple[str, float]] = []

    async def wait(name: str, duration_s: float) -> None:
        clock = VirtualClock()
        await clock.sleep_s(duration_s)
        ended.append((name, clock.monotonic_s()))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("long", 3600.0))
            group.create_task(wait("short", 60.0))

    run_in_virtual_time(run())
    assert ended == [("short", 60.0), ("long", 3600.0)]


def test_a_wait_without_end_is_an_error() -> None:
    """A coroutine that nothing wakes ends with an error, not with a process that hangs."""

    async def run() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits forever"):
        run_in_virtual_time(run())
