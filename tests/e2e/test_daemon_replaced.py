"""A daemon is replaced under a running trainer, by the next one or by one that stands by already."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.budget import PATIENT_S
from tests.e2e.daemon import STOP_S, Daemon
from tests.e2e.runs import Run, wait_until
from tests.e2e.shards import numbered
from tests.e2e.trainer import Job, epochs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHARDS, PER_SHARD = 6, 40
LABELS = [shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(PER_SHARD)]


@pytest.fixture
def stack(short_dir: Path, s3: S3Server) -> Iterator[ExitStack]:
    """What ends with the test, before its directory goes; the store holds six shards."""
    assert short_dir.exists()
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard}.tar", numbered(shard, PER_SHARD))
    with ExitStack() as opened:
        yield opened


def _run(daemon: Daemon, stack: ExitStack) -> Run:
    run = Run(daemon, Job(daemon.address, daemon.home / "steps.log", 1), stack)
    run.train()
    run.trainer.run_to("step", 5)
    return run


def _taken(run: Run) -> list[int]:
    return sorted(label for labels, _ in epochs(run.job.log)[0] for label in labels)


def _state(daemon: Daemon) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=PATIENT_S) as answer:
        return str(json.load(answer)["state"])


def _end(daemon: Daemon, way: str = "SIGTERM") -> None:
    """End a daemon, and see that one that is asked to end does so without an error."""
    if way == "SIGKILL":
        daemon.kill()
        return
    assert daemon.process is not None
    daemon.process.terminate()
    assert daemon.process.wait(STOP_S) == 0, daemon.log.read_text()[-3000:]


def test_a_daemon_told_to_end_does_not_wait_for_its_trainers(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """SIGTERM ends it while a trainer sits on a batch in the middle of an epoch; the next one serves the rest."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    run = _run(daemon, stack)
    _end(daemon)
    daemon.start()
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert daemon.stop() == 0


def _loaded(daemon: Daemon, library: str) -> bool:
    maps = [Path(f"/proc/{worker.pid}/maps").read_text() for worker in daemon.decode_workers()]
    return bool(maps) and all(library in one for one in maps)


@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
def test_a_standby_takes_over(short_dir: Path, s3: S3Server, stack: ExitStack, way: str) -> None:
    """Ready next to a daemon that serves, it serves socket and cache once that has ended; no sample is lost."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    run = _run(daemon, stack)
    standby = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    assert (_state(daemon), _state(standby)) == ("ready", "standby")
    wait_until(lambda: _loaded(standby, "cv2"), "workers that have loaded the image library")
    run.trainer.run_to("step", 5)  # the first daemon serves as before
    _end(daemon, way)
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert _state(standby) == "ready"
    counters = standby.metrics()
    assert counters.get("feedd_source_bytes_total", 0) == 0, "the cache was not used"
    assert standby.stop() == 0


def test_several_standbys_wait_in_line(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """One takes over, and the other one waits for its end; each sample of the epoch comes once."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    run = _run(daemon, stack)
    waiting = [stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",))) for _ in range(2)]
    for way in ("SIGKILL", "SIGTERM"):
        _end(daemon, way)
        wait_until(lambda: any(_state(one) == "ready" for one in waiting), "a standby that serves")
        assert sorted(map(_state, waiting))[1:] == ["standby"] * (len(waiting) - 1)
        run.trainer.run_to("step", 5)
        (daemon,) = (one for one in waiting if _state(one) == "ready")
        waiting.remove(daemon)
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert daemon.stop() == 0


def test_a_standby_gets_the_status_port_too(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """On one machine both want one port: the standby opens its page when the first daemon has closed its own."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    shared = Daemon(short_dir, s3.url, flags=("--standby",), status_port=daemon.status_port)
    standby = stack.enter_context(shared)
    wait_until(lambda: '"event": "standby"' in daemon.log.read_text(), "a daemon that stands by")
    _end(daemon)
    wait_until(lambda: daemon.log.read_text().count('"event": "status page"') == 2, "the page of the standby")
    assert _state(standby) == "ready"
    assert standby.stop() == 0


def test_a_standby_may_be_ended_or_find_no_daemon(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """Without another daemon it serves at once; ended while it waits, it leaves the other one as it is."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    wait_until(lambda: _state(daemon) == "ready", "a daemon that serves")
    standby = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    assert _state(standby) == "standby"
    _end(standby)
    run = _run(daemon, stack)
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert daemon.stop() == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("upgrades", [2, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(1200)])])
def test_rolling_upgrades_under_load(short_dir: Path, s3: S3Server, stack: ExitStack, upgrades: int) -> None:
    """One standby after another takes over, from daemons that drain and that are killed: every epoch is whole."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    job = Job(daemon.address, short_dir / "steps.log", 1 << 30, paced=False)
    run = Run(daemon, job, stack)
    run.train()
    for number in range(upgrades):
        _steps(job, "steps")
        standby = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
        _end(daemon, ("SIGTERM", "SIGKILL")[number % 2])
        wait_until(lambda: _state(standby) == "ready", "a standby that serves")  # noqa: B023 - called at once
        daemon = standby
    _steps(job, "steps with the last")
    run.trainer.stop()
    assert run.trainer.wait() == 0, run.trainer.complaints
    found = epochs(job.log)
    assert sorted(found) == list(range(len(found)))
    for number, steps in found.items():
        assert sorted(label for labels, _ in steps for label in labels) == LABELS, f"epoch {number}"
    daemon.wait_idle()
    assert daemon.stop() == 0


def _steps(job: Job, what: str) -> None:
    """Wait until the trainer has taken some steps more."""
    before = _size(job.log)
    wait_until(lambda: _size(job.log) > before + 2000, what)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
