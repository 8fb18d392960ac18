"""kill -9 of daemon, decode worker and trainer, at every moment of an epoch: each sample is trained on exactly once.

The last test does so at random, a hundred times, nightly.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

import pytest

from tests.budget import later
from tests.e2e.daemon import Daemon, free_port
from tests.e2e.runs import Run, wait_until
from tests.e2e.shards import numbered
from tests.e2e.trainer import BATCH_SIZE, UNREACHABLE, Job, Step, Trainer, epochs
from tests.fakes.s3.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

VICTIMS = ("daemon", "decode worker", "client")
AT_RANDOM = (*VICTIMS, "store")
MOMENTS = ("open", "first batch", "mid-epoch", "last batch", "boundary", "drain")
SHARDS, PER_SHARD, EPOCHS = 8, 24, 2
LABELS = Counter(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD))
STEPS = SHARDS * PER_SHARD // BATCH_SIZE
RANDOM_KILLS = 100
BUSY_BYTES = 60_000  # of the log: some epochs


def _objects() -> dict[str, bytes]:
    return {f"train/{shard}.tar": numbered(shard, PER_SHARD, pad_bytes=8000) for shard in range(SHARDS)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a store with the data, in a process of its own: connections to it outlive single tests."""
    with Store(tmp_path_factory.mktemp("store")) as store:
        yield store.url


class Store:
    """A store with the data as a process that can be killed, and comes back where it was; a context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        for key, data in _objects().items():
            (root / "data" / key).parent.mkdir(parents=True, exist_ok=True)
            (root / "data" / key).write_bytes(data)

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [sys.executable, "-m", "tests.fakes.s3.server", "--root", str(self._root), "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """End it in the middle of whatever it answers."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


def _daemon(home: Path, endpoint: str, *, workers: int = 1, grace: str = "10m") -> Daemon:
    # The cache holds less than half of the data: every epoch fetches, so that kills meet fetches too.
    settings = ("shuffle.window_shards=2", f"drain.grace={grace}")
    return Daemon(home, endpoint, workers=workers, cache_size="1MiB", settings=settings)


@pytest.fixture(scope="module")
def standing(store: str) -> Iterator[Daemon]:
    """A daemon for the tests that leave it as it is."""
    with TemporaryDirectory(prefix="fd-", dir="/tmp") as name, _daemon(Path(name), store) as daemon:
        yield daemon
        assert daemon.stop() == 0


@pytest.fixture(scope="module")
def undisturbed(standing: Daemon) -> dict[int, list[Step]]:
    """The steps of a run in which nobody is killed."""
    steps = _read_through(standing, EPOCHS)
    standing.wait_idle()
    assert standing.metrics()["feedd_cache_evictions_total"] > 0, "the cache is not small"
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


@pytest.fixture
def stack(short_dir: Path) -> Iterator[ExitStack]:
    """What ends with the test, before its directory goes."""
    with ExitStack() as opened:
        yield opened


# ---------------------------------------------------------------------- the matrix


@pytest.fixture
def run(short_dir: Path, stack: ExitStack, request: pytest.FixtureRequest, victim: str, moment: str) -> Run:
    """A run with a daemon of its own where that will end, or must not know the data yet."""
    if moment == "open":
        s3: S3Server = request.getfixturevalue("s3")
        for key, data in _objects().items():
            s3.put("data", key, data)
        s3.script("data", "", Fault(hang=True) if victim == "daemon" else Fault(delay_s=0.5), op="LIST")
        daemon = stack.enter_context(_daemon(short_dir, s3.url))
    elif victim == "daemon" or moment == "drain":
        daemon = stack.enter_context(_daemon(short_dir, request.getfixturevalue("store")))
    else:
        daemon = request.getfixturevalue("standing")
    return Run(daemon, Job(daemon.address, short_dir / "train.log", EPOCHS), stack)


def _come_to(run: Run, moment: str, s3: S3Server) -> None:
    """Bring the trainer to the moment; it waits there, but for ``open``: that is under way in the daemon."""
    run.train()
    if moment == "open":
        run.trainer.run_to("opening")
        run.trainer.go()
        wait_until(lambda: any(request.op == "LIST" for request in s3.requests), "a listing")
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
    before = _restarts(run)
    (worker,) = run.daemon.decode_workers()
    if moment in {"first batch", "mid-epoch", "drain"}:  # at the others there is nothing to decode
        worker.suspend()
        run.trainer.run_until(lambda: run.daemon.metrics()["feedd_decode_tasks"] > 0)  # so it dies with work in hand
    run.kill_worker(worker)
    wait_until(lambda: _restarts(run) == before + 1, "another worker")
    if moment == "drain":
        run.trainer.run_to("epoch end")
        run.drained()
        run.trainer.go()
        run.daemon.start()


def _restarts(run: Run) -> float:
    return run.daemon.metrics().get("feedd_decode_worker_restarts_total", 0.0)


def _client_dies(run: Run, moment: str) -> None:
    """The next one goes on from what was written; a daemon that drains has nobody left to wait for, and goes."""
    run.kill_client()
    if moment == "drain":
        run.drained()
        run.daemon.start()
    run.train()


DEATHS = dict(zip(VICTIMS, (_daemon_dies, _worker_dies, _client_dies), strict=True))


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        (later if (first + second) % 2 else pytest.param)(victim, moment)
        for first, victim in enumerate(VICTIMS)
        for second, moment in enumerate(MOMENTS)
    ],
)
def test_a_kill_loses_and_repeats_nothing(
    nothing_shared: None,
    undisturbed: dict[int, list[Step]],
    standing: Daemon,
    s3: S3Server,
    run: Run,
    victim: str,
    moment: str,
) -> None:
    """Whoever is killed, whenever: both epochs are step for step those of an undisturbed run, pixels included."""
    _come_to(run, moment, s3)
    before = len(epochs(run.job.log).get(0, []))
    assert before == {"open": 0, "first batch": 1, "last batch": STEPS, "boundary": STEPS}.get(moment, STEPS // 2)
    DEATHS[victim](run, moment)
    run.trainer.finish()
    assert epochs(run.job.log) == undisturbed
    assert len(run.trainers) == (2 if victim == "client" or (victim, moment) == ("daemon", "open") else 1)
    run.daemon.wait_idle()
    assert run.daemon is standing or run.daemon.stop() == 0


def test_a_drain_that_is_over_is_a_pause(
    nothing_shared: None, undisturbed: dict[int, list[Step]], store: str, short_dir: Path, stack: ExitStack
) -> None:
    """A daemon whose grace ends in mid-epoch goes with exit code 0; the trainer goes on with its successor."""
    daemon = stack.enter_context(_daemon(short_dir, store, grace="300ms"))
    run = Run(daemon, Job(daemon.address, short_dir / "train.log", EPOCHS), stack)
    run.train()
    run.trainer.run_to("step", STEPS // 2)
    assert daemon.process is not None
    daemon.process.terminate()
    run.drained()
    run.trainer.go()
    daemon.start()
    run.trainer.finish()
    assert epochs(run.job.log) == undisturbed
    daemon.wait_idle()
    assert daemon.stop() == 0


# ---------------------------------------------------------------------- at random


@dataclass(slots=True)
class Soak:
    """Kills at random in one long run; the trainer is started again whenever it has ended."""

    run: Run
    store: Store
    rng: random.Random
    deaths: Counter[str] = field(default_factory=Counter)

    def work(self, more_bytes: int) -> None:
        """Wait until the log has grown by so much, starting the trainer again where it was told of a daemon's death."""
        target = self._written_bytes() + more_bytes
        while True:
            wait_until(lambda: self._written_bytes() >= target or self._status() is not None, "steps")
            if self._status() is None:
                return
            assert self._status() == UNREACHABLE, self.run.trainer.complaints
            self.deaths["trainer that was opening"] += 1
            assert self.deaths["trainer that was opening"] <= self.deaths["daemon"]
            self.run.train()

    def kill(self, victim: str) -> None:
        """Kill one of the four."""
        self.deaths[victim] += 1
        if victim == "daemon":
            self.run.kill_daemon()
            self.run.daemon.start()
        elif victim == "client":
            self.run.kill_client()
            self.run.train()
        elif victim == "store":
            self.store.kill()
            time.sleep(self.rng.uniform(0, 0.2))
            self.store.start()
        else:
            wait_until(
                lambda: bool(self.run.daemon.decode_workers()), "a decode worker"
            )  # the last may just have been killed
            self.run.kill_worker(self.rng.choice(self.run.daemon.decode_workers()))

    def _status(self) -> int | None:
        return self.run.trainer.process.exitcode

    def _written_bytes(self) -> int:
        log = self.run.job.log
        return log.stat().st_size if log.exists() else 0


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_random_kills(nothing_shared: None, tmp_path: Path, short_dir: Path, stack: ExitStack) -> None:
    """Daemon, workers, trainer and store killed at random: every epoch is step for step that of an undisturbed run."""
    store = stack.enter_context(Store(tmp_path))
    daemon = stack.enter_context(_daemon(short_dir, store.url, workers=2))
    run = Run(daemon, Job(daemon.address, short_dir / "train.log", 1 << 30, paced=False), stack)
    run.train()
    rng = random.Random(RANDOM_KILLS)
    soak = Soak(run, store, rng)
    victims = [AT_RANDOM[number % len(AT_RANDOM)] for number in range(RANDOM_KILLS)]
    rng.shuffle(victims)
    for victim in victims:
        soak.work(rng.choice((0, rng.randrange(BUSY_BYTES))))  # 0: the next kill meets what the last one did
        time.sleep(rng.uniform(0, 0.02))
        soak.kill(victim)
    soak.work(BUSY_BYTES)
    run.trainer.stop()
    assert run.trainer.wait() == 0, run.trainer.complaints
    steps = epochs(run.job.log)
    print(f"{RANDOM_KILLS} kills in {len(steps)} epochs: {dict(soak.deaths)}")
    _each_exactly_once(steps)
    assert _read_through(daemon, len(steps)) == steps
    daemon.wait_idle(timeout_s=90)  # a trainer killed before it mapped its arena leaves its session for 60 s
    assert daemon.stop() == 0
