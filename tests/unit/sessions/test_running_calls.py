"""Running calls of a session: which of them wait until earlier ones have their shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from feedd.sessions.prefetch_driver import RunningCalls
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from feedd.sessions.prefetch_driver import PrefetchDriver


class _Driver:
    """All running calls read window 3 at least."""

    def reads_only(self, window: int) -> bool:
        return window <= 3


_FIRST, _SECOND, _THIRD = object(), object(), object()


@pytest.fixture
def calls() -> RunningCalls:
    """Three calls, in order."""
    found = RunningCalls(cast("PrefetchDriver", _Driver()))
    for call in (_FIRST, _SECOND, _THIRD):
        found.begin(call)
    return found


async def test_a_call_waits_for_the_shards_of_all_earlier_ones(calls: RunningCalls) -> None:
    """Not for later ones, and not for itself; a call that ended has them."""
    waiting = asyncio.ensure_future(calls.wait_for_earlier(_THIRD, 4, lambda: True))
    calls.pinned(_SECOND)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    calls.end(_FIRST)
    await asyncio.wait_for(waiting, PATIENT_S)
    assert len(calls) == 2
    await asyncio.wait_for(calls.wait_for_earlier(_SECOND, 4, lambda: True), PATIENT_S)


async def test_a_call_without_need_waits_for_nobody(calls: RunningCalls) -> None:
    """Its window is read by others, or it fetches nothing; shards are not even looked up for the former."""
    await asyncio.wait_for(calls.wait_for_earlier(_THIRD, 3, lambda: pytest.fail("looked")), 1.0)
    await asyncio.wait_for(calls.wait_for_earlier(_THIRD, 4, lambda: False), 1.0)
