"""A daemon and its trainer, of whom a test kills one: and sees that it is gone."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from tests.budget import PATIENT_S
from tests.e2e.daemon import STOP_S
from tests.e2e.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from tests.e2e.daemon import Daemon
    from tests.e2e.trainer import Job

LIMIT_S = 60.0


@dataclass(slots=True)
class Run:
    """A daemon and the trainer that reads from it, or the next one that goes on where the last was killed."""

    daemon: Daemon
    job: Job
    stack: ExitStack
    trainers: list[Trainer] = field(default_factory=list)

    @property
    def trainer(self) -> Trainer:
        """The one that lives."""
        return self.trainers[-1]

    def train(self) -> None:
        """Start a trainer."""
        trainer = Trainer(self.job)
        self.stack.callback(trainer.close)
        self.trainers.append(trainer)

    def kill_daemon(self) -> None:
        """Kill it and see its workers go with it."""
        assert self.daemon.process is not None
        children = psutil.Process(self.daemon.process.pid).children(recursive=True)
        self.daemon.kill()
        wait_until(lambda: all(map(_ended, children)), "the end of the daemon's workers")
        assert not psutil.pid_exists(self.daemon.process.pid)

    def kill_worker(self, victim: psutil.Process) -> None:
        """Kill a decode worker and see it go."""
        victim.kill()
        wait_until(lambda: _ended(victim), "the worker's end")

    def kill_client(self) -> None:
        """Kill the trainer and see it go."""
        pid = self.trainer.process.pid
        assert pid is not None
        self.trainer.kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the trainer's end")

    def drain(self) -> None:
        """Ask the daemon to go, and wait until it says that it will."""
        assert self.daemon.process is not None
        self.daemon.process.terminate()
        wait_until(lambda: _health(self.daemon) == "draining", "a daemon that drains")

    def drained(self) -> None:
        """See the daemon go by itself, long before its grace is over."""
        assert self.daemon.process is not None
        assert self.daemon.process.wait(STOP_S) == 0, self.daemon.log.read_text()[-3000:]


def wait_until(met: Callable[[], bool], what: str) -> None:
    """Ask again and again until ``met()``."""
    deadline = time.monotonic() + LIMIT_S
    while not met():
        assert time.monotonic() < deadline, f"expected {what} within {LIMIT_S:g} s"
        time.sleep(0.01)


def _ended(process: psutil.Process) -> bool:
    """Whether it holds and does nothing any more; who should take note of the end of an orphan may do so late."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _health(daemon: Daemon) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=PATIENT_S) as answer:
            return str(json.load(answer)["state"])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["state"])
