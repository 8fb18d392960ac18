"""Calls side by side: results in order, the first failure as it was raised, and cancellation that stays one."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.errors import StoreUnavailable
from feedd.flow.tasks import INLINE_BYTES, both, off_loop, run_all, within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def _give(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _fail() -> int:
    raise StoreUnavailable("expected bytes, got none") from OSError("reset by peer")


async def _stubborn(ended: list[str]) -> int:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("stubborn")
        raise ValueError("a clean-up that fails")


async def test_results_come_in_order() -> None:
    """Results stand where their calls stood."""
    assert await run_all(_give(n) for n in range(5)) == [0, 1, 2, 3, 4]
    assert await run_all([]) == []
    assert await both(_give(1), _give(2)) == (1, 2)


async def test_the_first_failure_comes_out_as_it_was_raised() -> None:
    """The error keeps its own cause, and the other calls have ended before it is seen."""
    for calls in (lambda ended: run_all([_stubborn(ended), _fail()]), lambda ended: both(_stubborn(ended), _fail())):
        ended: list[str] = []
        with pytest.raises(StoreUnavailable, match="expected bytes") as caught:
            await calls(ended)
        assert isinstance(caught.value.__cause__, OSError)
        assert ended == ["stubborn"]
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0


async def test_cancellation_is_not_turned_into_an_error() -> None:
    """A caller that is cancelled ends cancelled, though a call fails while it is being cancelled."""
    for start in (lambda ended: run_all([_stubborn(ended)]), lambda ended: both(_stubborn(ended), _give(1))):
        ended: list[str] = []
        task = asyncio.ensure_future(start(ended))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert ended == ["stubborn"]


async def test_a_deadline_around_failing_calls_is_a_timeout() -> None:
    """A deadline that passes is told as such, whatever the calls raise when it cancels them."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_all([_stubborn([])])


async def test_work_on_much_memory_leaves_the_loop_alone() -> None:
    """Little is done where it is asked for, much in a thread; errors come out as they are."""
    assert await off_loop(threading.get_ident, INLINE_BYTES) == threading.get_ident()
    assert await off_loop(threading.get_ident, INLINE_BYTES + 1) != threading.get_ident()
    with pytest.raises(ValueError, match="bad"):
        await off_loop(lambda: int("bad"), INLINE_BYTES + 1)


async def test_memory_stays_borrowed_until_the_thread_is_done_with_it() -> None:
    """Who is cancelled meanwhile waits for the thread, and ends cancelled."""
    began, may_end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        may_end.wait()

    task = asyncio.ensure_future(off_loop(work, INLINE_BYTES + 1))
    await asyncio.to_thread(began.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    may_end.set()
    await asyncio.wait((task,))
    assert task.cancelled()


def _late() -> StoreUnavailable:
    return StoreUnavailable("expected an end, got none")


async def test_a_deadline_ends_the_body_with_an_error_of_ours() -> None:
    """Past its deadline the body is cancelled and the error is ours, with the time-out as its cause."""
    ended: list[str] = []

    async def run() -> None:
        async with within(0.01, _late):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("body")

    with pytest.raises(StoreUnavailable, match="got none") as caught:
        await run()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert ended == ["body"]
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0


async def test_a_deadline_can_be_moved() -> None:
    """Without a deadline a body has one from when it is given one; one that is taken away does not come."""

    async def run() -> None:
        async with within(None, _late) as scope:
            scope.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match="got none"):
        await run()
    async with within(0.0, _late) as scope:
        scope.reschedule(None)
        await asyncio.sleep(0.01)


async def _time_out() -> None:
    raise TimeoutError(errno.ETIMEDOUT, "timed out")


async def _pass() -> None:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()


@pytest.mark.parametrize("body", [_time_out, _pass])
async def test_a_time_out_of_the_body_stays_what_it_is(body: Callable[[], Awaitable[None]]) -> None:
    """What timed out before the deadline is not said to be late: a system call, or a deadline of the body's own."""
    with pytest.raises(TimeoutError):
        async with within(10.0, _late):
            await body()


async def test_who_is_cancelled_within_a_deadline_is_not_late() -> None:
    """Cancelled from outside a body ends cancelled; nobody is asked for an error."""
    asked: list[str] = []

    def late() -> StoreUnavailable:
        asked.append("late")
        return _late()

    async def run() -> None:
        async with within(10.0, late):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not asked
