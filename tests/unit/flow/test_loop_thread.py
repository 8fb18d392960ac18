"""Coroutines on another loop, in a thread or not."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from feedd.flow.loop_thread import CallersLoop, LoopThread, WorkLoop
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")
NAME = "feedd-test-loop"


@pytest.fixture(params=[CallersLoop, lambda: LoopThread(NAME)], ids=["caller's", "thread"])
async def loop(request: pytest.FixtureRequest) -> AsyncIterator[WorkLoop]:
    """Open a work loop of each kind."""
    opened: WorkLoop = request.param()
    async with opened:
        yield opened


@pytest.fixture
async def thread() -> AsyncIterator[LoopThread]:
    """Open a loop in a thread."""
    async with LoopThread(NAME) as opened:
        yield opened


async def _raise(error: BaseException) -> None:
    raise error


async def test_a_run_is_like_a_call(loop: WorkLoop) -> None:
    """It sees the caller's context, and the caller gets its result or its error."""

    async def work() -> str:
        await asyncio.sleep(0)
        return VARIABLE.get()

    VARIABLE.set("mine")
    assert await loop.run(work) == "mine"
    error = KeyError("absent")
    with pytest.raises(KeyError) as caught:
        await loop.run(lambda: _raise(error))
    assert caught.value is error


async def test_work_that_does_not_even_begin(loop: WorkLoop) -> None:
    """A function that raises instead of returning a coroutine is like a coroutine that raises."""

    def work() -> NoReturn:
        raise KeyError("absent")

    with pytest.raises(KeyError):
        await asyncio.wait_for(loop.run(work), PATIENT_S)


async def test_each_run_has_the_context_of_its_caller(loop: WorkLoop) -> None:
    """Also where two of them begin together."""

    async def work() -> str:
        return VARIABLE.get()

    async def call(value: str) -> str:
        VARIABLE.set(value)
        return await loop.run(work)

    one, other = await asyncio.gather(call("one"), call("other"))
    assert (one, other) == ("one", "other")


async def test_runs_are_in_the_thread(thread: LoopThread) -> None:
    """All of them on one loop, which is of the caller's kind and not the caller's."""

    async def where() -> tuple[str, asyncio.AbstractEventLoop]:
        return threading.current_thread().name, asyncio.get_running_loop()

    first, second = await asyncio.gather(thread.run(where), thread.run(where))
    assert first == second
    assert first[0] == NAME
    home = asyncio.get_running_loop()
    assert first[1] is not home
    assert type(first[1]) is type(home)


async def test_a_cancelled_caller_waits_for_the_end(loop: WorkLoop) -> None:
    """The work uses the caller's memory: it has ended when the caller continues, however often that is cancelled."""
    steps: list[str] = []
    started, may_end = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            while not may_end.is_set():  # noqa: ASYNC110 - set by another loop
                await asyncio.sleep(0.001)
            steps.append("ended")
            raise

    task = asyncio.create_task(loop.run(work))
    await until(started.is_set)
    task.cancel()
    await until(lambda: steps == ["cancelled"])
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cancelled", "ended"]


async def test_a_second_cancellation_does_not_abandon_the_work(thread: LoopThread) -> None:
    """A caller that is cancelled again still waits."""
    ended, started, may_end = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            while not may_end.is_set():
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue
            ended.set()

    task = asyncio.create_task(thread.run(work))
    await until(started.is_set)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_that_ends_well_all_the_same_was_cancelled(thread: LoopThread) -> None:
    """The caller's cancellation is never lost."""
    started = threading.Event()

    async def work() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done"
        return "late"

    task = asyncio.create_task(thread.run(work))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_posts_reports_and_results_keep_their_order(loop: WorkLoop) -> None:
    """What was posted first begins first, and reports come before the result of the run that made them."""
    got: list[object] = []
    seen: list[int] = []

    async def work() -> None:
        for number in range(50):
            loop.report(got.append, number)
            if number % 7 == 0:
                await asyncio.sleep(0)

    for number in range(5):
        loop.post(seen.append, number)
    await loop.run(work)
    assert seen == list(range(5))
    assert got == list(range(50))


async def test_reports_of_a_turn_come_together(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's loop is woken once for them, not once for each."""
    home = asyncio.get_running_loop()
    wakes, real = 0, home.call_soon_threadsafe

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal wakes
        wakes += 1
        return real(*args, **kwargs)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(home, "call_soon_threadsafe", counted)
    got: list[int] = []

    async def work() -> int:
        for number in range(1000):
            thread.report(got.append, number)
        time.sleep(0.05)  # noqa: ASYNC251 - this turn goes on, and the caller's loop has time
        return len(got)

    assert await thread.run(work) == 0, "nothing arrives before the end of the turn"
    assert len(got) == 1000
    assert wakes <= 2, "for the reports, and for the result"


async def test_a_call_that_fails_stops_no_other(thread: LoopThread) -> None:
    """It is reported as the loop reports errors of callbacks, and the next call is made."""
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    got: list[int] = []

    async def work() -> None:
        thread.report(divmod, 1, 0)
        thread.report(got.append, 1)

    await thread.run(work)
    assert got == [1]
    assert [type(problem["exception"]) for problem in problems] == [ZeroDivisionError]


async def test_what_still_runs_is_cancelled_at_the_end() -> None:
    """Its callers learn of it, the thread is gone, and nothing begins there any more."""
    thread, started = LoopThread(NAME), threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    async with thread:
        task = asyncio.create_task(thread.run(work))
        await until(started.is_set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert NAME not in {one.name for one in threading.enumerate()}
    with pytest.raises(AssertionError, match="stopped"):
        await thread.run(work)


async def test_nothing_of_a_run_is_kept(thread: LoopThread) -> None:
    """Neither its result nor its error, whose traceback refers to the caller's memory, once the caller has them."""

    class Memory:
        """Stands for a buffer."""

    async def work(memory: Memory, *, fails: bool) -> Memory:
        if fails:
            raise ValueError("no")
        return memory

    gc.disable()
    try:
        for fails in (False, True):
            memory = Memory()
            kept = weakref.ref(memory)
            try:
                await thread.run(functools.partial(work, memory, fails=fails))
            except ValueError:
                assert fails
            del memory
            await until(functools.partial(_is_gone, kept))
    finally:
        gc.enable()


def _is_gone(kept: weakref.ref[Any]) -> bool:
    return kept() is None
