"""kill -9 of daemon, decode worker and trainer, at every moment of an epoch: each sample is trained on exactly once.

The last test does so at random. For a long soak: ``FEEDD_SOAK_KILLS=100 pytest tests/e2e/test_kill_matrix.py -k hundred``
(a few minutes).
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest

from feedd.bench.server.faults import Fault
from feedd.bench.server.server import S3Server
from tests.e2e.daemon import STOP_S, Daemon
from tests.e2e.shards import numbered
from tests.e2e.trainer import BATCH_SIZE, UNREACHABLE, Job, Step, Trainer, epochs, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLS = int(os.environ.get("FEEDD_SOAK_KILLS", "6"))  # here: a test sees no variable of this kind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

VICTIMS = ("daemon", "decode worker", "client")
MOMENTS = ("open", "first batch", "mid-epoch", "last batch", "boundary", "drain")
SHARDS, PER_SHARD, EPOCHS = 8, 24, 2
LABELS = Counter(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD))
STEPS = SHARDS * PER_SHARD // BATCH_SIZE
# The cache holds less than half of the data: every epoch fetches, so that kills meet fetches too.
SETTINGS = ("shuffle.window_shards=2", "drain.grace=10m")
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A server with the data, for all tests; the process that trainers are forked from is there, too."""
    warm_up()
    with S3Server() as server:
        for shard in range(SHARDS):
            server.put("data", f"train/{shard}.tar", numbered(shard, PER_SHARD, pad_bytes=8000))
        yield server


def _daemon(home: Path, s3: S3Server, workers: int = 1) -> Daemon:
    return Daemon(home, s3.url, workers=workers, cache_size="1MiB", settings=SETTINGS)


@pytest.fixture(scope="module")
def undisturbed(s3: S3Server) -> dict[int, list[Step]]:
    """The steps of a run in which nobody is killed."""
    with TemporaryDirectory(prefix="fd-", dir="/tmp") as name, _daemon(Path(name), s3) as daemon:
        steps = _read_through(daemon, EPOCHS)
        assert daemon.metrics()["feedd_cache_evictions_total"] > 0, "the cache is not small"
    assert [len(steps[epoch]) for epoch in range(EPOCHS)] == [STEPS] * EPOCHS
    assert steps[0] != steps[1]
    _each_exactly_once(steps)
    return steps


def _read_through(daemon: Daemon, count: int) -> dict[int, list[Step]]:
    trainer = Trainer(Job(daemon.address, daemon.home / "undisturbed.log", count, paced=False))
    try:
        assert trainer.wait() == 0, trainer.complaints
    finally:
        trainer.close()
    return epochs(trainer.job.log)


def _each_exactly_once(steps: dict[int, list[Step]]) -> None:
    assert sorted(steps) == list(range(len(steps)))
    for epoch, taken in steps.items():
        found = Counter(label for labels, _ in taken for label in labels)
        assert found == LABELS, f"epoch {epoch}: lost {LABELS - found}, repeated {found - LABELS}"


# ---------------------------------------------------------------------- one run


@dataclass(slots=True)
class Run:
    """A daemon and the trainer that reads from it, or the next one that goes on where the last was killed."""

    s3: S3Server
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
        assert not psutil.wait_procs(children, timeout=10)[1], "a worker outlived the daemon"
        assert not psutil.pid_exists(self.daemon.process.pid)

    def kill_worker(self, rng: random.Random | None = None) -> None:
        """Kill a decode worker and see it go."""
        found: list[psutil.Process] = []

        def any_worker() -> bool:
            found[:] = self.workers()
            return bool(found)

        _wait_until(any_worker, "a decode worker")
        victim = rng.choice(found) if rng else found[0]
        victim.kill()
        victim.wait(10)
        assert not victim.is_running()

    def workers(self) -> list[psutil.Process]:
        """The daemon's decode workers."""
        assert self.daemon.process is not None
        found = []
        for child in psutil.Process(self.daemon.process.pid).children(recursive=True):
            try:
                if "feedd.decode.worker" in child.cmdline():
                    found.append(child)
            except psutil.Error:  # it has just ended
                continue
        return found

    def kill_client(self) -> None:
        """Kill the trainer and see it go."""
        pid = self.trainer.process.pid
        assert pid is not None
        self.trainer.kill()
        _wait_until(lambda: not psutil.pid_exists(pid), "the trainer's end")

    def drain(self) -> None:
        """Ask the daemon to go, and wait until it says that it will."""
        assert self.daemon.process is not None
        self.daemon.process.terminate()
        _wait_until(lambda: _health(self.daemon) == "draining", "a daemon that drains")

    def drained(self) -> None:
        """See the daemon go by itself, long before its grace is over."""
        assert self.daemon.process is not None
        assert self.daemon.process.wait(STOP_S) == 0, self.daemon.log.read_text()[-3000:]


@pytest.fixture
def runs(s3: S3Server, short_dir: Path) -> Iterator[Callable[..., Run]]:
    """Start a daemon and a trainer; both end with the test."""
    with ExitStack() as stack:

        def start(*, workers: int = 1, count: int = EPOCHS, paced: bool = True) -> Run:
            s3.calm()
            daemon = stack.enter_context(_daemon(short_dir, s3, workers))
            return Run(s3, daemon, Job(daemon.address, short_dir / "train.log", count, paced), stack)

        yield start


def _wait_until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not met():
        assert time.monotonic() < deadline, f"expected {what} within {LIMIT_S:g} s"
        time.sleep(0.01)


def _health(daemon: Daemon) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=5) as answer:
            return str(json.load(answer)["state"])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["state"])


# ---------------------------------------------------------------------- the matrix


def _come_to(run: Run, moment: str) -> None:
    """Bring the trainer to the moment; it waits there, but for ``open``: that is under way in the daemon."""
    run.train()
    if moment == "open":
        seen = len(run.s3.requests)
        run.s3.script("data", "", Fault(delay_s=0.7), op="LIST")
        run.trainer.run_to("opening")
        run.trainer.go()
        _wait_until(lambda: any(request.op == "LIST" for request in run.s3.requests[seen:]), "a listing")
    elif moment == "boundary":
        run.trainer.run_to("epoch end")
    else:
        steps = {"first batch": 1, "mid-epoch": STEPS // 2, "last batch": STEPS, "drain": STEPS // 2}[moment]
        run.trainer.run_to("step", steps)
        if moment == "drain":
            run.drain()


def _daemon_dies(run: Run, moment: str) -> None:
    """A pause for a trainer that had begun; one that was just opening is told at once, and is started again."""
    run.kill_daemon()
    if moment != "open":
        run.trainer.go()  # what it asks for now, it asks of nobody
    else:
        assert run.trainer.wait() == UNREACHABLE
    run.daemon.start()
    if moment == "open":
        run.train()


def _worker_dies(run: Run, moment: str) -> None:
    """Another one takes its place; in a daemon that drains, too, which goes when it has served the epoch."""
    run.kill_worker()
    _wait_until(lambda: run.daemon.metrics().get("feedd_decode_worker_restarts_total", 0) >= 1, "another worker")
    if moment == "drain":
        run.trainer.run_to("epoch end")
        run.drained()
        run.trainer.go()
        run.daemon.start()


def _client_dies(run: Run, moment: str) -> None:
    """The next one goes on from what was written; a daemon that drains has nobody left to wait for, and goes."""
    run.kill_client()
    if moment == "drain":
        run.drained()
        run.daemon.start()
    run.train()


DEATHS = dict(zip(VICTIMS, (_daemon_dies, _worker_dies, _client_dies), strict=True))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_kill_loses_and_repeats_nothing(
    nothing_shared: None, undisturbed: dict[int, list[Step]], runs: Callable[..., Run], victim: str, moment: str
) -> None:
    """Whoever is killed, whenever: both epochs are step for step those of an undisturbed run, pixels included."""
    run = runs()
    _come_to(run, moment)
    before = len(epochs(run.job.log).get(0, []))
    assert before == {"open": 0, "first batch": 1, "last batch": STEPS, "boundary": STEPS}.get(moment, STEPS // 2)
    DEATHS[victim](run, moment)
    run.trainer.finish()
    assert epochs(run.job.log) == undisturbed
    assert len(run.trainers) == (2 if victim == "client" or (victim, moment) == ("daemon", "open") else 1)
    run.daemon.wait_idle()
    assert run.daemon.stop() == 0
