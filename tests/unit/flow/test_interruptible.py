"""A body that can be ended from outside, and a task that is begun late: nobody's cancellation is lost or made up."""

from __future__ import annotations

import asyncio
import gc

import pytest

from feedd.flow.side_task import Interruptible, SideTask
from tests.fakes.virtual_time import run_virtually


async def _nap(duration_s: float, said: list[str], word: str) -> None:
    try:
        await asyncio.sleep(duration_s)
    except asyncio.CancelledError:
        said.append(f"{word} cancelled")
        await asyncio.sleep(1.0)  # ends slowly
        raise
    said.append(word)


def test_a_body_is_interrupted_and_its_task_goes_on() -> None:
    """Only the body ends; the task counts as cancelled by nobody."""

    async def run() -> None:
        said: list[str] = []
        body, loop = Interruptible(), asyncio.get_running_loop()
        began_s = loop.time()
        loop.call_later(1.0, body.interrupt)
        loop.call_later(1.5, body.interrupt)  # twice is once
        with body:
            await _nap(9.0, said, "body")
        assert said == ["body cancelled"]
        assert loop.time() == began_s + 2.0
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0
        await asyncio.sleep(1.0)

    run_virtually(run())


def test_nobody_is_interrupted_before_or_behind_the_body() -> None:
    """Outside of the body it does nothing."""

    async def run() -> None:
        body = Interruptible()
        body.interrupt()
        with body:
            await asyncio.sleep(1.0)
        body.interrupt()
        await asyncio.sleep(1.0)

    run_virtually(run())


@pytest.mark.parametrize("at_s", [0.5, 1.5])
def test_who_cancels_the_task_is_heard(at_s: float) -> None:
    """Whether before the interruption or while the body ends for it."""

    async def run() -> None:
        body, loop = Interruptible(), asyncio.get_running_loop()

        async def work() -> None:
            loop.call_later(1.0, body.interrupt)
            with body:
                await _nap(9.0, [], "body")

        task = loop.create_task(work())
        loop.call_later(at_s, task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()

    run_virtually(run())


def test_a_body_that_fails_or_ends_although_interrupted() -> None:
    """Its error is raised, its end is an end, and the task is not left marked as cancelled."""

    async def run() -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        for fails in (True, False):
            body = Interruptible()
            loop.call_later(1.0, body.interrupt)
            try:
                with body:
                    try:
                        await asyncio.sleep(9.0)
                    except asyncio.CancelledError:
                        if fails:
                            raise ValueError from None
            except ValueError:
                assert fails
            assert me.cancelling() == 0

    run_virtually(run())


def test_one_beside_is_waited_for() -> None:
    """Whoever has it returns when it has ended, however it was told to; its error is raised."""

    async def run() -> None:
        said: list[str] = []
        loop, beside = asyncio.get_running_loop(), SideTask()
        await beside.ended()  # nothing was begun
        beside.cancel()
        assert not beside.started
        beside.begin(_nap(1.0, said, "beside"))
        await beside.ended()
        assert said == ["beside"]

        beside = SideTask()
        beside.begin(_nap(9.0, said, "told"))
        await asyncio.sleep(0)
        beside.cancel()
        await beside.ended()
        assert said == ["beside", "told cancelled"]

        async def fail() -> None:
            raise ValueError("beside")

        beside = SideTask()
        beside.begin(fail())
        with pytest.raises(ValueError, match="beside"):
            await beside.ended()

        async def work() -> None:
            other.begin(_nap(9.0, said, "other"))
            await other.ended()

        other = SideTask()
        task = loop.create_task(work())
        loop.call_later(1.0, task.cancel)
        loop.call_later(1.5, task.cancel)  # impatience changes nothing: it may take its time to end
        began_s = loop.time()
        await asyncio.wait([task])
        assert task.cancelled()
        assert said[-1] == "other cancelled"
        assert loop.time() == began_s + 2.0

    run_virtually(run())


def test_a_task_that_fails_as_we_are_cancelled_is_looked_at() -> None:
    """The cancellation is what is raised, and nobody complains of an error that nobody saw."""

    async def run() -> None:
        loop, kept = asyncio.get_running_loop(), [SideTask()]
        complaints: list[object] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))

        async def fail() -> None:
            try:
                await asyncio.sleep(9.0)
            finally:
                raise ValueError("beside")

        async def work() -> None:
            kept[0].begin(fail())
            await kept[0].ended()

        task = loop.create_task(work())
        loop.call_later(1.0, task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()
        kept.clear()
        del task
        gc.collect()
        assert not complaints

    run_virtually(run())
