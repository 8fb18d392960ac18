"""A daemon is replaced under a running trainer: told at once, taken over by a successor that was started beforehand."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.budget import PATIENT_S
from tests.e2e.daemon import STOP_S, Daemon
from tests.e2e.runs import Run, wait_until
from tests.e2e.shards import numbered
from tests.e2e.trainer import Job, epochs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHARDS, PER_SHARD = 6, 40
_ADVANCE = "sessions are open in advance"
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


def _end(daemon: Daemon) -> int:
    assert daemon.process is not None
    daemon.process.terminate()
    return daemon.process.wait(STOP_S)


def test_a_daemon_told_to_end_does_not_wait_for_its_trainers(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """SIGTERM ends it while a trainer sits on a batch in the middle of an epoch; the next one serves the rest."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    run = _run(daemon, stack)
    assert _end(daemon) == 0
    daemon.start()
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert daemon.stop() == 0


def test_a_successor_waits_and_takes_over(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """Ready beside its predecessor, it serves socket and cache as soon as that has ended; no sample is lost."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    run = _run(daemon, stack)
    successor = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    assert (_state(daemon), _state(successor)) == ("ready", "standby")
    run.trainer.run_to("step", 5)  # the predecessor serves as before
    assert _end(daemon) == 0
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert _state(successor) == "ready"
    counters = successor.metrics()
    assert counters.get("feedd_source_bytes_total", 0) == 0, "the cache was not handed over"
    assert successor.stop() == 0


def test_a_successor_gets_the_status_port_too(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """On one machine both want one port: the successor opens its page when the predecessor has closed its own."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    shared = Daemon(short_dir, s3.url, flags=("--standby",), status_port=daemon.status_port)
    successor = stack.enter_context(shared)
    wait_until(lambda: '"event": "standby"' in daemon.log.read_text(), "a successor in waiting")
    assert _end(daemon) == 0
    wait_until(lambda: daemon.log.read_text().count('"event": "status page"') == 2, "the successor's page")
    assert _state(successor) == "ready"
    assert successor.stop() == 0


def test_a_successor_may_be_ended_or_have_no_predecessor(short_dir: Path, s3: S3Server, stack: ExitStack) -> None:
    """Without a predecessor it serves at once; ended while it waits, it leaves the predecessor as it is."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    wait_until(lambda: _state(daemon) == "ready", "a daemon that serves")
    successor = stack.enter_context(Daemon(short_dir, s3.url, flags=("--standby",)))
    assert _state(successor) == "standby"
    assert _end(successor) == 0
    run = _run(daemon, stack)
    run.trainer.finish()
    assert _taken(run) == LABELS
    assert daemon.stop() == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("upgrades", [2, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(1200)])])
def test_rolling_upgrades_under_load(short_dir: Path, s3: S3Server, stack: ExitStack, upgrades: int) -> None:
    """One successor after another takes over from a daemon that serves: every epoch has every sample once."""
    daemon = stack.enter_context(Daemon(short_dir, s3.url))
    job = Job(daemon.address, short_dir / "steps.log", 1 << 30, paced=False)
    run = Run(daemon, job, stack)
    run.train()
    for number in range(upgrades):
        asks = number % 2 == 1
        written_bytes = _size(job.log)
        wait_until(lambda: _size(job.log) > written_bytes + 2000, "steps")  # noqa: B023 - called at once
        successor = stack.enter_context(Daemon(short_dir, s3.url, flags=("--takeover" if asks else "--standby",)))
        assert daemon.process is not None
        assert (daemon.process.wait(STOP_S) if asks else _end(daemon)) == 0
        wait_until(lambda: _state(successor) == "ready", "a successor that serves")  # noqa: B023 - called at once
        daemon = successor
    written_bytes = _size(job.log)
    wait_until(lambda: _size(job.log) > written_bytes + 2000, "steps with the last")
    run.trainer.stop()
    assert run.trainer.wait() == 0, run.trainer.complaints
    found = epochs(job.log)
    assert sorted(found) == list(range(len(found)))
    for number, steps in found.items():
        assert sorted(label for labels, _ in steps for label in labels) == LABELS, f"epoch {number}"
    daemon.wait_idle()
    opened = [line for line in map(json.loads, daemon.log.read_text().splitlines()) if _ADVANCE in line["event"]]
    assert [line["sessions"] for line in opened] == [1] * upgrades
    assert daemon.stop() == 0


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
