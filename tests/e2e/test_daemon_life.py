"""The life of a real daemon process: ready is told, a signal drains, two stop, a failed start leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.budget import PATIENT_S
from tests.e2e.daemon import STOP_S, Daemon
from tests.e2e.shards import numbered
from tests.fakes import forks
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HOLD = b"HOLD!" + bytes(16)
_READER = """
import sys
from feedd_client import FeedDataset
for batch in FeedDataset(sys.argv[2], batch_size=4, fields={"cls": "int"}, address=sys.argv[1]):
    print("got", flush=True)
    sys.stdin.readline()
"""


def _events(daemon: Daemon) -> list[dict[str, object]]:
    return [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]


def _wait(met: Callable[[], object], limit_s: float = PATIENT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _health(daemon: Daemon) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=PATIENT_S) as answer:
            return answer.status, json.load(answer)["state"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["state"]


@pytest.fixture
def home(short_dir: Path) -> Path:
    """Where the daemon under test lives."""
    return short_dir


@pytest.fixture
def reader(home: Path) -> Iterator[Callable[[Daemon], forks.Script]]:
    """Start a trainer process that took one batch and holds it."""
    (home / "data").mkdir()
    (home / "data" / "0.tar").write_bytes(numbered(0, 100))
    with ExitStack() as started:

        def start(daemon: Daemon) -> forks.Script:
            arguments = [daemon.address, f"file://{home}/data/"]
            process = started.enter_context(forks.Script(_READER, arguments, home / "reader.log"))
            assert process.stdout.readline() == b"got\n"
            return process

        yield start


def _messages(manager: socket.socket, until: bytes) -> list[bytes]:
    found: list[bytes] = []
    while not any(until in message for message in found):
        found.append(manager.recv(4096))
    return found


def test_service_manager_and_log_hear_the_whole_life(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY, WATCHDOG and STOPPING reach the manager; the log opens with the configuration and ends with totals."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(home / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(home / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "600000")
        with Daemon(home, "http://127.0.0.1:9", forked=False) as daemon:
            _messages(manager, b"READY=1\nSTATUS=ready")
            _messages(manager, b"WATCHDOG=1")
            assert _health(daemon) == (200, "ready")
            assert daemon.metrics()["feedd_daemon_state"] == 1.0
            assert daemon.stop() == 0
            assert any(b"STOPPING=1" in message for message in _messages(manager, b"STATUS=stopped"))
    events = _events(daemon)
    states = [event["event"] for event in events if event["event"] in {"starting", "ready", "draining", "stopped"}]
    assert states == ["starting", "ready", "draining", "stopped"]
    assert events[0]["event"] == "starting"
    config = events[0]["config"]
    assert isinstance(config, dict)
    assert config["cache.size"] == "1GiB"
    assert (events[-1]["event"], events[-1]["reason"], events[-1]["batches"]) == ("stopped", "SIGTERM", 0)
    assert not (home / "feedd.sock").exists()


def test_open_streams_get_their_grace_and_a_second_signal_ends_it(
    home: Path, reader: Callable[[Daemon], forks.Script]
) -> None:
    """After one signal the daemon drains, says 503 and waits for the trainer; after another it ends at once."""
    with Daemon(home, "http://127.0.0.1:9", forked=False, settings=("drain.grace=10m",)) as daemon:
        reader(daemon)
        assert daemon.process is not None
        daemon.process.terminate()
        _wait(lambda: _health(daemon) == (503, "draining"))
        assert daemon.metrics()["feedd_serve_sessions"] == 1.0
        assert daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(STOP_S) == 0
    totals = _events(daemon)[-1]
    assert totals["event"] == "stopped"
    assert int(str(totals["samples"])) >= 4


def test_drain_ends_with_the_last_stream(home: Path, reader: Callable[[Daemon], forks.Script]) -> None:
    """A daemon that drains does not wait for its grace once the trainer has gone."""
    with Daemon(home, "http://127.0.0.1:9", settings=("drain.grace=10m",)) as daemon:
        trainer = reader(daemon)
        assert daemon.process is not None
        daemon.process.terminate()
        _wait(lambda: _health(daemon)[1] == "draining")
        trainer.kill()
        assert daemon.process.wait(STOP_S) == 0


def _fails(home: Path, *more: str) -> tuple[int, list[str]]:
    """Start a daemon that cannot start; return its exit code and what it says beside the log."""
    arguments = ["--listen", f"unix://{home}/x.sock", "--cache-dir", str(home / "x"), "--status", "off"]
    small = ["--cache-size", "64MiB", "--workers", "1", "--set", "arena.size=16MiB", "--set", "cache.free_reserve=0"]
    done = forks.run(["serve", *arguments, *small, *more], os.environ)
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("{")]


def test_every_failing_phase_unwinds_and_says_one_thing(home: Path) -> None:
    """Status port taken, cache owned, socket taken: exit code, one error with a hint, and no process or socket left."""
    with Daemon(home, "http://127.0.0.1:9") as daemon:
        taken = f"127.0.0.1:{daemon.status_port}"
        cases = {
            ("--status", taken): (2, taken),
            ("--cache-dir", str(home / "cache")): (1, "in use by process"),
            ("--listen", daemon.address): (2, "feedd.sock"),
        }
        for more, (code, named) in cases.items():
            found, lines = _fails(home, *more)
            assert found == code, (more, lines)
            assert lines[0].startswith("feedd: error: ")
            assert named in lines[0]
            assert all(line.startswith("feedd: hint: ") for line in lines[1:])
            assert not (home / "x.sock").exists()
            assert not [p for p in psutil.Process().children(recursive=True) if str(home / "x.sock") in command_of(p)]
        assert _health(daemon) == (200, "ready")
        assert daemon.stop() == 0


def test_an_ephemeral_daemon_ends_with_its_last_holder(home: Path) -> None:
    """Two processes hold it: it stays for the second one and goes by itself, cleanly, when that one has gone."""
    with Daemon(home, "http://127.0.0.1:9", flags=("--ephemeral",)) as daemon:
        assert daemon.process is not None
        holders = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for holder in holders:
            holder.settimeout(10)
            holder.connect(f"{home}/feedd.sock.arena")
            holder.sendall(HOLD)
            assert holder.recv(1) == b"\x01"
        holders[0].close()
        assert _health(daemon) == (200, "ready")
        assert daemon.process.poll() is None
        holders[1].close()
        assert daemon.process.wait(STOP_S) == 0
    assert _events(daemon)[-1]["reason"] == "the last holder has gone"


def test_a_killed_daemon_leaves_no_child(home: Path) -> None:
    """Kill -9 of the daemon takes its workers with it, and its successor starts in the same place."""
    with Daemon(home, "http://127.0.0.1:9") as daemon:
        assert daemon.process is not None
        children = psutil.Process(daemon.process.pid).children(recursive=True)
        assert children
        daemon.kill()
        _wait(lambda: not any(child.is_running() for child in children))
        daemon.start()
        assert daemon.stop() == 0
