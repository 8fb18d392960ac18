"""Warming a cache with real processes: through the daemon that owns it and without one, whole, in part, broken off."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from feedd.cache.inspection import scan
from tests.fakes import forks
from tests.fakes.s3 import faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BUCKET = "warm"
URL = f"s3://{BUCKET}/train/"
SIZE = 300_000
WAIT_S = 40.0


@pytest.fixture
def names(s3: S3Server) -> list[str]:
    """Six objects, each of its own bytes."""
    found = [f"train/{number:02d}.tar" for number in range(6)]
    for number, key in enumerate(found):
        s3.put(BUCKET, key, bytes([number]) * SIZE)
    return [f"s3://{BUCKET}/{key}" for key in found]


class Command:
    """``feedd cache …`` on the cache of one home, with or without a daemon there."""

    def __init__(self, home: Path, endpoint: str) -> None:
        self.cache = home / "cache"
        self._config = home / "feedd.toml"
        self._config.write_text(
            f'listen = ["unix://{home}/feedd.sock"]\n'
            f'[cache]\ndir = "{self.cache}"\nsize = "64MiB"\nfree_reserve = "16MiB"\n'
        )
        self._env = os.environ | {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it as a user does."""
        command = [sys.executable, "-m", "feedd", "cache", *arguments, "--config", str(self._config)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        return subprocess.Popen(command, env=self._env, **pipes)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, forked."""
        return forks.run(["cache", *arguments, "--config", str(self._config)], self._env, WAIT_S)

    def urls(self) -> list[str]:
        """What lies in the directory."""
        return sorted(entry.url for entry in scan(self.cache))


def _until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_through_the_daemon(daemons: Callable[..., Daemon], s3: S3Server, names: list[str], short_dir: Path) -> None:
    """With a daemon on the directory the same commands ask it: warm fills, ls, stat and rm see its books."""
    daemon = daemons()
    command = Command(daemon.home, s3.url)
    share = command.run("warm", URL, "--nodes", "2", "--node-rank", "1", "--json")
    assert share.returncode == 0, share.stderr
    assert json.loads(share.stdout)["warmed"] == {"objects": 3, "bytes": 3 * SIZE}
    assert [entry["url"] for entry in json.loads(command.run("ls", "--json").stdout)] == names[1::2]

    everything = command.run("warm", URL)
    assert everything.returncode == 0, everything.stderr
    last = everything.stderr.splitlines()[-1]
    assert last == "feedd: 6 objects: 3 warmed (878.9KiB), 3 there before (878.9KiB)"
    assert daemon.metrics()["feedd_source_bytes_total"] == 6 * SIZE
    facts = json.loads(command.run("stat", "--json").stdout)
    assert (facts["entries"], facts["object_bytes"], facts["pins"], facts["reserved_bytes"]) == (6, 6 * SIZE, 0, 0)

    removed = command.run("rm", f"{URL}0[01]*", "--yes")
    assert (removed.returncode, removed.stdout) == (0, "removed 2 objects, 585.9KiB\n")
    _until(lambda: command.urls() == names[2:])
    daemon.wait_idle()


def test_errors_through_the_daemon(daemons: Callable[..., Daemon], s3: S3Server, names: list[str]) -> None:
    """An object that cannot be had is named and ends in exit code 1; the others come; nothing stays reserved."""
    daemon = daemons()
    s3.script(BUCKET, "train/03.tar", always=faults.denied())
    done = Command(daemon.home, s3.url).run("warm", URL, "--address", daemon.address)
    assert done.returncode == 1
    assert f"[{names[3]}]" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("5 warmed (1.4MiB), 0 there before (0B), 1 failed")
    missing = Command(daemon.home, s3.url).run("warm", f"s3://{BUCKET}/none/")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"[s3://{BUCKET}/none/]" in missing.stderr
    daemon.wait_idle()


def test_the_client_going_away_stops_it(daemons: Callable[..., Daemon], s3: S3Server, names: list[str]) -> None:
    """Ctrl-C at the client ends the daemon's fills that nobody else wants; what was whole is kept."""
    daemon = daemons(settings=("fetch.parts_in_flight=2",))
    command = Command(daemon.home, s3.url)
    for key in ("train/02.tar", "train/03.tar"):
        s3.script(BUCKET, key, always=faults.hang_in_body(1000))
    process = command.start("warm", URL)
    _until(lambda: daemon.metrics()["feedd_cache_reserved_bytes"] and command.urls() == names[:2])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1, err
    assert "stopped" in err
    assert "Traceback" not in err
    daemon.wait_idle()
    assert command.urls() == names[:2]


def test_without_a_daemon(s3: S3Server, names: list[str], short_dir: Path) -> None:
    """Without a daemon the directory is filled all the same, and a daemon that comes then reads nothing again."""
    command = Command(short_dir, s3.url)
    for key in ("train/02.tar", "train/03.tar"):
        s3.script(BUCKET, key, always=faults.hang_in_body(1000))
    process = command.start("warm", URL, "--set", "fetch.parts_in_flight=2")
    _until(lambda: command.urls() == names[:2])
    refused = command.run("warm", URL)
    assert (refused.returncode, "in use by process" in refused.stderr) == (1, True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, "fetched objects stay in the cache" in err, "Traceback" in err) == (1, True, False), err
    assert command.urls() == names[:2]
    assert not list(command.cache.rglob(".tmp-*"))
    s3.calm()
    done = command.run("warm", URL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "feedd: 2 of 6 objects, 585.9KiB of 1.7MiB"
    assert done.stderr.splitlines()[-1] == "feedd: 6 objects: 4 warmed (1.1MiB), 2 there before (585.9KiB)"
    assert command.urls() == names


@pytest.mark.nightly
def test_bars_on_a_terminal(s3: S3Server, names: list[str], short_dir: Path) -> None:
    """On a terminal there are bars with bytes, objects and rate, and the same last line."""
    ours, theirs = pty.openpty()
    try:
        process = Command(short_dir, s3.url).start("warm", URL, stderr=theirs)
        shown = b""
        os.set_blocking(ours, False)
        while process.poll() is None:
            time.sleep(0.02)
            try:
                shown += os.read(ours, 65536)
            except BlockingIOError:
                continue
        process.communicate(timeout=WAIT_S)
        with contextlib.suppress(BlockingIOError):
            shown += os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "6/6 objects" in text
    assert "1.7/1.7 MiB" in text
    assert "6 objects: 6 warmed (1.7MiB)" in text
