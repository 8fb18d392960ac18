"""Connections between two requests: which is taken next, and what becomes of them when nobody does."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from feedd.fetch.s3.connection import LazyTimer
from feedd.fetch.s3.pool import Idle
from tests.budget import PATIENT_S
from tests.fakes.raw_server import RawServer
from tests.fakes.sinks import into
from tests.unit.fetch.test_connection import BODY, REQUEST, get, head, pool_of


class _Connection:
    def __init__(self, address: str) -> None:
        self.address = address


def _one(address: str) -> Any:
    return _Connection(address)


def test_the_last_used_of_an_address_goes_first() -> None:
    """Of one address it is the last that was given; of all, the address that was given one last stands in front."""
    idle, (a, b, c) = Idle(), (_one("x"), _one("x"), _one("y"))
    for one in (a, c, b):
        idle.add(one)
    assert (idle.addresses, len(idle), set(map(id, idle))) == (["x", "y"], 3, {id(a), id(b), id(c)})
    assert idle.take("x") is b
    assert idle.take("x") is a
    assert idle.addresses == ["y"]
    assert idle.take_all("y") == [c]
    assert (idle.addresses, len(idle)) == ([], 0)


def test_lost_ones_are_forgotten_whether_they_are_there_or_not() -> None:
    """One that was taken, one of an address that is not known, and one that is there."""
    idle, (a, b) = Idle(), (_one("x"), _one("x"))
    idle.add(a)
    idle.add(b)
    taken = idle.take("x")
    idle.discard(taken)
    idle.discard(_one("y"))
    assert list(idle) == [a]
    idle.discard(a)
    assert (list(idle), idle.addresses) == ([], [])


async def test_an_alarm_rings_at_its_last_moment_and_no_other() -> None:
    """Put off it rings later; brought forward, sooner; turned off, not at all."""
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm = LazyTimer(rung.set)
    alarm.set(loop.time() + 0.01)
    put_off_s = loop.time() + 0.05
    alarm.set(put_off_s)
    async with asyncio.timeout(PATIENT_S):
        await rung.wait()
        assert loop.time() >= put_off_s
        rung.clear()
        alarm.set(loop.time() + 1000)
        alarm.set(loop.time() + 0.01)
        await rung.wait()
    rung.clear()
    alarm.set(loop.time() + 0.01)
    alarm.set(math.inf)
    await asyncio.sleep(0.03)
    alarm.set(loop.time() + 0.01)
    alarm.stop()
    await asyncio.sleep(0.03)
    assert not rung.is_set()


@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
@pytest.mark.slow
async def test_a_silent_address_is_left_before_the_deadline_of_a_small_request(kept: bool) -> None:
    """Silence is noticed by the connection itself, which puts the address in quarantine, on a kept one as on a new."""
    answers = [head() + BODY] if kept else []
    async with RawServer(*answers) as server, pool_of(server.port, read_timeout_s=1.0) as pool:
        if kept:
            assert await get(pool) == BODY
            await asyncio.sleep(0.3)  # the watch of the request before is still to ring
        with pytest.raises(TimeoutError, match="no byte received within the read timeout"):
            async with asyncio.timeout(1.4):
                await pool.request(REQUEST, into(bytearray(10)), lambda _: None)
        assert "1 in quarantine" in repr(pool._addresses)


async def test_one_taken_up_again_outlives_its_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier rest set in motion does not end a connection that is in use, and a later rest begins anew."""
    monkeypatch.setattr("feedd.fetch.s3.pool._IDLE_S", 0.1)
    async with RawServer(head() + BODY, [None, head() + BODY]) as server, pool_of(server.port) as pool:
        assert await get(pool) == BODY
        waiting = asyncio.create_task(get(pool))
        await asyncio.sleep(0.2)  # in use, beyond the idle time
        server.go.set()
        async with asyncio.timeout(PATIENT_S):
            assert await waiting == BODY
            assert server.connection_count == 1
            (connection,) = pool.connections
            await connection.lost  # nobody uses it any more
