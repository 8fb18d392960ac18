"""SIGSTOP of daemon, worker and store, and a loop that hangs: the trainer says what it waits for, and loses nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest

from feedd.daemon.watchdog import EXIT_CODE
from tests.budget import PATIENT_S, later
from tests.e2e.daemon import Daemon
from tests.e2e.runs import Run, wait_until
from tests.e2e.shards import numbered
from tests.e2e.trainer import BATCH_SIZE, Job, Step, epochs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARDS, PER_SHARD = 16, 24
LABELS = Counter(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD))
STEPS = SHARDS * PER_SHARD // BATCH_SIZE
VICTIMS = {"daemon": "no heartbeat", "decode worker": "it is decoding", "store": "it is fetching data"}

# A hook in the daemon's process: once a file named "hang" is there, a callback of its event loop never returns.
_HOOK = """
import os, threading, time
import uvloop
make = uvloop.new_event_loop
def new_event_loop():
    loop = make()
    def watch():
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "hang")):
            time.sleep(0.05)
        loop.call_soon_threadsafe(time.sleep, 3600)
    threading.Thread(target=watch, daemon=True).start()
    return loop
uvloop.new_event_loop = new_event_loop
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things take; the trainer's notice and heartbeats follow its limit."""

    stopped_s: float
    stall_timeout_s: float
    task_deadline: str
    said_s: float
    went_on_s: float
    replaced_s: float


# What the trainer is promised: a reason within 30 s of the stop, the next batch within 30 s of the end of it, and a
# worker in the place of a stopped one within 70 s. In short the same machinery has a tenth of the time to wait.
WHOLE = Limits(60.0, 120.0, "60s", 30.0, 30.0, 70.0)
SHORT = Limits(6.0, 12.0, "9s", 60.0, 60.0, 60.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The endpoint of a store with the data, and the id of its process."""
    root = tmp_path_factory.mktemp("store")
    for shard in range(SHARDS):
        path = root / "data" / "train" / f"{shard}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbered(shard, PER_SHARD, pad_bytes=8000))
    with _served(root) as (endpoint, pid):
        yield endpoint, pid


@contextmanager
def _served(root: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder; the server ends with the block, however that ends, and even if the server is stopped."""
    command = [sys.executable, "-m", "tests.fakes.s3.server", "--root", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.kill()


def test_a_store_that_is_stopped_ends_with_an_interrupted_test(tmp_path: Path) -> None:
    """Nothing is left of the server, and nobody waits for one that cannot end by itself."""
    with pytest.raises(KeyboardInterrupt), _served(tmp_path) as (_, pid):  # noqa: PT012 - one block, one interrupt
        os.kill(pid, signal.SIGSTOP)
        raise KeyboardInterrupt
    assert not psutil.pid_exists(pid)


def _daemon(home: Path, endpoint: str, task_deadline: str, *, forked: bool = True) -> Daemon:
    # The cache holds a quarter of the data, and few shards are fetched ahead: a stopped store is felt soon.
    settings = ("shuffle.window_shards=2", f"decode.task_deadline={task_deadline}", "watchdog.exit_after=3s")
    return Daemon(home, endpoint, cache_size="1MiB", settings=settings, forked=forked)


@pytest.fixture(scope="module")
def undisturbed(store: tuple[str, int]) -> list[Step]:
    """The steps of an epoch in which nobody is stopped."""
    with TemporaryDirectory(prefix="fd-", dir="/tmp") as name, ExitStack() as stack:
        daemon = stack.enter_context(_daemon(Path(name), store[0], "60s"))
        run = Run(daemon, Job(daemon.address, Path(name) / "steps.log", 1), stack)
        run.train()
        run.trainer.finish()
        steps = epochs(run.job.log)[0]
    assert len(steps) == STEPS
    assert Counter(label for labels, _ in steps for label in labels) == LABELS
    return steps


@pytest.fixture
def stack(short_dir: Path) -> Iterator[ExitStack]:
    """What ends with the test, before its directory goes."""
    assert short_dir.exists()
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("victim", [one if one == "daemon" else later(one) for one in VICTIMS])
@pytest.mark.parametrize(
    "limits", [pytest.param(SHORT, id="short"), pytest.param(WHOLE, id="whole", marks=pytest.mark.nightly)]
)
def test_a_stopped_part_is_named_and_costs_no_sample(
    short_dir: Path, store: tuple[str, int], undisturbed: list[Step], stack: ExitStack, victim: str, limits: Limits
) -> None:
    """The trainer says what it waits for, goes on by itself, and has the very steps of an undisturbed epoch."""
    endpoint, store_pid = store
    daemon = stack.enter_context(_daemon(short_dir, endpoint, limits.task_deadline))
    run = Run(daemon, Job(daemon.address, short_dir / "steps.log", 1, stall_timeout_s=limits.stall_timeout_s), stack)
    run.train()
    run.trainer.run_to("step", 4)
    assert daemon.process is not None
    stopped = {"daemon": daemon.process.pid, "decode worker": daemon.decode_workers()[0].pid, "store": store_pid}[
        victim
    ]
    stopped_at_s = time.monotonic()
    stack.callback(_let_go_on, stopped)
    os.kill(stopped, signal.SIGSTOP)
    run.trainer.run_until(lambda: f"waiting for the daemon at {daemon.address}" in run.trainer.complaints)
    assert time.monotonic() - stopped_at_s < limits.said_s
    assert VICTIMS[victim] in run.trainer.complaints
    held_count = sum(map(len, epochs(run.job.log).values()))
    if victim == "decode worker":
        run.trainer.run_until(lambda: sum(map(len, epochs(run.job.log).values())) > held_count)
        assert time.monotonic() - stopped_at_s < limits.replaced_s
        assert not psutil.pid_exists(stopped)
    else:
        wait_until(lambda: time.monotonic() - stopped_at_s > limits.stopped_s, "the end of the stop")
        os.kill(stopped, signal.SIGCONT)
        run.trainer.run_until(lambda: sum(map(len, epochs(run.job.log).values())) > held_count)
        assert time.monotonic() - stopped_at_s - limits.stopped_s < limits.went_on_s
    run.trainer.finish()
    assert epochs(run.job.log)[0] == undisturbed
    assert "continues after" in run.trainer.complaints or "resumed at step" in run.trainer.complaints
    daemon.wait_idle()
    assert daemon.stop() == 0


def _let_go_on(pid: int) -> None:
    """End a stop that a failed test left."""
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGCONT)


def test_a_daemon_whose_loop_hangs_ends_and_the_next_one_goes_on(
    short_dir: Path, store: tuple[str, int], undisturbed: list[Step], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that never returns ends the daemon with the stacks in its log; the trainer resumes at its step."""
    hooks = short_dir / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(_HOOK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hooks), os.environ.get("PYTHONPATH", "")]))
    daemon = stack.enter_context(_daemon(short_dir, store[0], "60s", forked=False))
    run = Run(daemon, Job(daemon.address, short_dir / "steps.log", 1), stack)
    run.train()
    run.trainer.run_to("step", 4)
    (hooks / "hang").touch()
    assert daemon.process is not None
    assert daemon.process.wait(PATIENT_S) == EXIT_CODE
    # the hook hangs whichever of the two loops calls it first
    assert re.search(r"the event loop( of fetches)? is stuck: the process ends", daemon.log.read_text())
    (hooks / "hang").unlink()
    daemon.start()
    run.trainer.finish()
    assert epochs(run.job.log)[0] == undisturbed
    assert daemon.stop() == 0
