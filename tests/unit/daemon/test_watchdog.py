"""A watchdog ends a process whose loop is stuck, and none that was merely stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.daemon.watchdog import EXIT_CODE, FETCHING_LOOP, TICK_S, Watchdog, WatchdogOptions
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

# Blocks its loop in the way that the argument names, after half a second of healthy life.
_PROCESS = """
import asyncio, re, signal, sys, time
from feedd.daemon import watchdog
from feedd.flow import log_sink
from feedd.clock import SystemClock
from feedd.daemon.heartbeat import beat
from feedd.daemon.notify import Notifier
from feedd.daemon.watchdog import FETCHING_LOOP, Watchdog, WatchdogOptions
from feedd.observe.recorder import MemoryRecorder

watchdog._CPU_PER_CORE_S = 0.5  # else the one that computes does so for ten seconds
log_sink.take_stderr()
if sys.argv[2:] == ["hangs"]:
    log_sink.os.write = lambda *_: time.sleep(3600)  # as a write to a disk that does not answer
elif sys.argv[2:] == ["raises"]:
    log_sink.os.write = lambda *_: 1 // 0

async def main():
    with Watchdog(WatchdogOptions(0.5, 1.5)) as watchdog:
        task = asyncio.create_task(beat(MemoryRecorder(), SystemClock(), Notifier({}), watchdog))
        await asyncio.sleep(0.5)
        print("up", flush=True)
        if sys.argv[1] == "sleeps":
            time.sleep(60)
        elif sys.argv[1] == "computes":
            re.match(r"(a+)+$", "a" * 40 + "b")  # holds the interpreter's lock for hours
        await asyncio.to_thread(sys.stdin.readline)
        print("well", flush=True)
        task.cancel()

asyncio.run(main())
"""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said that it is up."""
    arguments = [sys.executable, "-c", _PROCESS, request.param]
    started = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    yield started
    started.kill()
    started.communicate()


class _Exit(Exception):
    """Instead of the process's end."""


def test_looks_count_and_not_the_clock(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Ten silent looks of a second write the stacks once, sixty end the process; a sign of life starts anew."""

    def leave(code: int) -> None:
        raise _Exit(code)

    monkeypatch.setattr(os, "_exit", leave)
    watchdog = Watchdog(WatchdogOptions())
    assert watchdog.tick_s == TICK_S
    for _ in range(2):
        watchdog.alive()
        for _ in range(60):
            watchdog.look()
    said = capfd.readouterr().err
    assert said.count('"the event loop is stuck"') == 2
    assert said.count(" in test_looks_count_and_not_the_clock") == 2
    with pytest.raises(_Exit, match=str(EXIT_CODE)):
        watchdog.look()


def test_each_loop_is_watched(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A loop that is silent is named, however lively another is; a loop that was forgotten may be silent."""
    monkeypatch.setattr(os, "_exit", lambda _: None)
    watchdog = Watchdog(WatchdogOptions())
    watchdog.alive(FETCHING_LOOP)
    for _ in range(11):
        watchdog.alive()
        watchdog.look()
    assert capfd.readouterr().err.count('"the event loop of fetches is stuck"') == 1
    watchdog.alive(FETCHING_LOOP)
    watchdog.look()
    watchdog.forget(FETCHING_LOOP)
    for _ in range(100):
        watchdog.alive()
        watchdog.look()
    assert not capfd.readouterr().err


def test_a_watchdog_that_is_switched_off_has_no_thread() -> None:
    """With both limits at zero there is nothing to start, and nothing to stop."""
    before = threading.active_count()
    with Watchdog(WatchdogOptions(0, 0)):
        assert threading.active_count() == before


def test_nothing_of_it_outlives_it() -> None:
    """Behind it the process's timer and its signal are what they were."""
    with Watchdog(WatchdogOptions(1, 2)):
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


@pytest.mark.slow  # a process, and real time
@pytest.mark.parametrize("process", ["sleeps"], indirect=True)
def test_a_loop_that_waits_ends_its_process(process: subprocess.Popen[bytes]) -> None:
    """A callback that blocks is named by the stacks in the log, then the process ends with its own status."""
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == EXIT_CODE
    assert said.count(b"the event loop is stuck") == 2
    assert b"in main" in said


@pytest.mark.slow  # a process, and many seconds of computing
@pytest.mark.parametrize("process", ["computes"], indirect=True)
def test_a_loop_that_lets_no_thread_run_ends_its_process(process: subprocess.Popen[bytes]) -> None:
    """A callback that holds the interpreter's lock keeps the thread from waking; the kernel ends the process then."""
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == -signal.SIGPROF
    assert b"in match" in said


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that is full and that nobody reads: where to write."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.mark.slow  # processes, and real time
@pytest.mark.parametrize(
    ("loop", "log", "status"),
    [
        ("sleeps", "unread", EXIT_CODE),
        ("sleeps", "hangs", EXIT_CODE),
        ("sleeps", "raises", EXIT_CODE),
        ("computes", "unread", -signal.SIGPROF),
    ],
)
def test_last_words_that_cannot_be_said(loop: str, log: str, status: int, unread: int) -> None:
    """A stuck process ends with its status when writing its stacks blocks, hangs or raises."""
    arguments = [sys.executable, "-c", _PROCESS, loop, *([] if log == "unread" else [log])]
    stderr = unread if log == "unread" else subprocess.DEVNULL
    done = subprocess.run(
        arguments, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, timeout=110
    )
    assert (done.stdout, done.returncode) == (b"up\n", status)


@pytest.mark.slow  # a process, and real time
@pytest.mark.parametrize("process", ["stays"], indirect=True)
def test_a_stopped_process_is_not_taken_for_a_stuck_one(process: subprocess.Popen[bytes]) -> None:
    """SIGSTOP for longer than the limit, and SIGCONT: the process goes on."""
    for _ in range(2):
        os.kill(process.pid, signal.SIGSTOP)
        threading.Event().wait(2.5)
        os.kill(process.pid, signal.SIGCONT)
        threading.Event().wait(0.5)
    said, complaints = process.communicate(b"\n", timeout=PATIENT_S)
    assert process.returncode == 0
    assert said.endswith(b"well\n")
    assert b"stuck: the process ends" not in complaints
