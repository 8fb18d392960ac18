"""States, stop requests and the heartbeat, each alone."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
import time

import pytest

from feedd import __version__, metrics
from feedd.clock import SystemClock
from feedd.daemon.cut_short import ended_by
from feedd.daemon.failures import single
from feedd.daemon.heartbeat import PERIOD_S, beat, beat_of_fetches
from feedd.daemon.notify import Notifier
from feedd.daemon.process_tree import FIRST_HOLDER_S, Holders
from feedd.daemon.signals import StopRequests, handled
from feedd.daemon.state import State
from feedd.daemon.watchdog import FETCHING_LOOP, SERVING_LOOP, Watchdog, WatchdogOptions
from feedd.errors import BadConfig
from feedd.flow.loop_thread import CallersLoop, LoopThread
from feedd.observe.recorder import MemoryRecorder
from feedd.values import Lifecycle
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until


def _current(recorder: MemoryRecorder) -> list[str]:
    name = metrics.DAEMON_STATE.name
    return [labels[0] for (metric, labels), value in recorder.values.items() if metric == name and value == 1.0]


def test_exactly_one_state_is_shown() -> None:
    """The gauge is 1 for the present state and 0 for every other one, from the first moment on."""
    recorder = MemoryRecorder()
    state = State(recorder, Notifier({}))
    assert (state.now, _current(recorder)) == (Lifecycle.STARTING, ["starting"])
    for to in (Lifecycle.READY, Lifecycle.DRAINING, Lifecycle.STOPPED):
        state.move(to)
        assert (state.now, _current(recorder)) == (to, [to.value])


def test_states_only_move_forward() -> None:
    """A daemon that drains never becomes ready again; a failed start may skip states."""
    state = State(MemoryRecorder(), Notifier({}))
    state.move(Lifecycle.DRAINING)
    with pytest.raises(AssertionError):
        state.move(Lifecycle.READY)
    state.move(Lifecycle.STOPPED)


async def test_first_signal_drains_second_insists() -> None:
    """Real signals: one asks to drain and names itself, another one asks to stop at once."""
    requests = StopRequests()
    with handled(requests):
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENT_S):
            await requests.drain.wait()
        assert (requests.reason, requests.now.is_set()) == ("SIGTERM", False)
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(PATIENT_S):
            await requests.now.wait()
    assert requests.reason == "SIGTERM"


async def test_signals_are_given_back() -> None:
    """After the daemon the process's own handling is in force again."""
    with handled(StopRequests()):
        pass
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_request_keeps_its_first_reason_and_grace() -> None:
    """Asking again changes nothing; a signal after a request insists."""
    requests = StopRequests()
    requests.ask("admin", 3.0)
    requests.ask("other", 9.0)
    assert (requests.reason, requests.grace_s, requests.now.is_set()) == ("admin", 3.0, False)
    requests.on_signal(signal.SIGTERM)
    assert requests.now.is_set()


def _watchdog() -> Watchdog:
    return Watchdog(WatchdogOptions(0, 0))


class _LateClock:
    """A clock whose sleeps last a given time longer than asked, and which ends after a few."""

    def __init__(self, late_s: list[float]) -> None:
        self._late_s = late_s
        self._now_s = 100.0

    def monotonic_s(self) -> float:
        return self._now_s

    async def sleep_s(self, duration_s: float) -> None:
        if not self._late_s:
            raise asyncio.CancelledError
        self._now_s += duration_s + self._late_s.pop(0)


def test_the_build_is_shown() -> None:
    """The versions of feedd and Python are labels of a gauge that is 1."""
    recorder = MemoryRecorder()
    State(recorder, Notifier({}))
    assert recorder.values[metrics.BUILD_INFO.name, (__version__, platform.python_version())] == 1.0


async def test_heartbeat_measures_how_late_the_loop_is() -> None:
    """The gauge holds the delay of the last wake-up, the histogram those of all."""
    recorder = MemoryRecorder()
    with pytest.raises(asyncio.CancelledError):
        await beat(recorder, _LateClock([0.0, 0.25]), Notifier({}), _watchdog())
    assert recorder.total(metrics.DAEMON_LOOP_LAG) == pytest.approx(0.25)
    assert recorder.observations[metrics.DAEMON_LOOP_DELAY.name, ("serving",)] == pytest.approx([0.0, 0.25])


async def test_processor_time_of_the_loops_is_counted() -> None:
    """Work on a loop counts as time of that loop's thread; sleep does not."""

    class Working(_LateClock):
        async def sleep_s(self, duration_s: float) -> None:
            until_s = time.thread_time() + 0.02
            while time.thread_time() < until_s:
                pass
            await super().sleep_s(duration_s)

    recorder = MemoryRecorder()
    with pytest.raises(asyncio.CancelledError):
        await beat(recorder, Working([0.0, 0.0]), Notifier({}), _watchdog())
    busy_s = recorder.values[metrics.DAEMON_LOOP_BUSY.name, ("serving",)]
    assert 0.04 <= busy_s <= time.thread_time()
    async with LoopThread("feedd-test-loop") as other:
        with pytest.raises(asyncio.CancelledError):
            await beat_of_fetches(recorder, other, _LateClock([0.0, 0.0]), _watchdog())
    assert len(recorder.observations[metrics.DAEMON_LOOP_DELAY.name, ("fetching",)]) == 3
    assert 0 < recorder.values[metrics.DAEMON_LOOP_BUSY.name, ("fetching",)] < busy_s


async def test_heartbeat_is_faster_than_the_watchdog() -> None:
    """The sign of life comes at least three times per period the manager asked for."""
    clock = _LateClock([0.0] * 3)
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "300000"})
    with pytest.raises(asyncio.CancelledError):
        await beat(MemoryRecorder(), clock, notifier, _watchdog())
    assert clock.monotonic_s() == pytest.approx(100.0 + 3 * min(PERIOD_S, 0.1))


async def test_the_loop_of_fetches_gives_signs_of_life() -> None:
    """While it answers, and until the task ends; a loop that does not answer gives none."""
    watchdog = _Noting()
    with pytest.raises(asyncio.CancelledError):
        await beat_of_fetches(MemoryRecorder(), CallersLoop(), _LateClock([0.0] * 2), watchdog)
    assert watchdog.notes == [f"{FETCHING_LOOP} is alive"] * 3 + [f"{FETCHING_LOOP} is forgotten"]
    async with LoopThread("feedd-test-loop") as stuck:
        may_go, watchdog = threading.Event(), _Noting()
        stuck.post(may_go.wait)
        task = asyncio.create_task(beat_of_fetches(MemoryRecorder(), stuck, SystemClock(), watchdog))
        await asyncio.sleep(0.05)
        assert not watchdog.notes
        may_go.set()
        await until(lambda: watchdog.notes == [f"{FETCHING_LOOP} is alive"])
        task.cancel()
        await asyncio.wait([task])


class _Noting(Watchdog):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(WatchdogOptions(0, 0))
        self.notes: list[str] = []

    def alive(self, loop: str = SERVING_LOOP) -> None:
        self.notes.append(f"{loop} is alive")

    def forget(self, loop: str) -> None:
        self.notes.append(f"{loop} is forgotten")


class _StillClock(_LateClock):
    """A clock whose sleeps end at once, and remember how long they were meant to be."""

    def __init__(self) -> None:
        super().__init__([])
        self.slept_s: list[float] = []

    async def sleep_s(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


async def test_an_ephemeral_daemon_nobody_holds_ends() -> None:
    """Whoever starts such a daemon connects in time, or has died."""
    requests, clock = StopRequests(), _StillClock()
    await Holders(requests).expect_first(clock)
    assert (requests.reason, requests.grace_s, clock.slept_s) == ("no process connected in time", 0.0, [FIRST_HOLDER_S])


async def test_an_ephemeral_daemon_stays_while_it_is_held() -> None:
    """It outlives the first wait and every holder but the last."""
    requests = StopRequests()
    holders = Holders(requests)
    holders.on_change(1)
    holders.on_change(2)
    holders.on_change(1)
    await holders.expect_first(_StillClock())
    assert not requests.drain.is_set()
    holders.on_change(0)
    assert requests.reason == "the last holder has gone"


async def test_a_body_is_cut_short_by_its_event() -> None:
    """The body is cancelled, cleans up in its own task, and what follows goes on."""
    event, seen = asyncio.Event(), []
    task = asyncio.current_task()
    async with ended_by(event):
        try:
            event.set()
            await asyncio.sleep(60)
        finally:
            seen.append(asyncio.current_task() is task)
    assert seen == [True]


async def test_a_body_that_ends_by_itself_is_left_alone() -> None:
    """No event, no difference; a time-out of the body's own is not swallowed."""
    async with ended_by(asyncio.Event()):
        await asyncio.sleep(0)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with ended_by(asyncio.Event()), asyncio.timeout(0):
            await asyncio.sleep(60)
    assert isinstance(single(caught.value), TimeoutError)


def test_one_error_comes_out_of_a_group() -> None:
    """An error raised on purpose goes before others; several defects stay together."""
    known, other = BadConfig("x"), ValueError("y")
    assert single(ExceptionGroup("a", [other, ExceptionGroup("b", [known])])) is known
    assert single(ExceptionGroup("a", [ExceptionGroup("b", [other])])) is other
    both = ExceptionGroup("a", [other, KeyError("z")])
    assert single(both) is both
    assert single(other) is other
