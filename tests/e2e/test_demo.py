"""``feedd demo`` as a user types it: servers, daemons and trainers as real processes, and numbers that must hold."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_demo_trains_and_reads_everything_once(nodes: int) -> None:
    """The loss falls, the first epoch reads each object once over all nodes, the second epoch reads none."""
    done = subprocess.run(
        [sys.executable, "-m", "feedd", "demo", "--nodes", str(nodes)],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "COLUMNS": "200", "FEEDD_FETCH__HEDGE_SHARE": "0"},  # a slow machine gets second requests
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the loss fell" in done.stdout
    shards = re.search(r"(\d+) shards", done.stdout)
    assert shards is not None
    daemons = done.stdout.partition("feedd demo: daemons")[2]
    rows = [line.split("│") for line in daemons.splitlines() if re.match(r"│\s+[01] ", line)]
    gets = [[int(row[3]) for row in rows if int(row[1]) == epoch] for epoch in (0, 1)]
    assert [sum(counts) for counts in gets] == [int(shards[1]), 0], done.stdout
    assert all(len(counts) == nodes for counts in gets)


@pytest.mark.nightly
def test_one_epoch_is_no_failure() -> None:
    """With one epoch there is no loss to compare with, and nothing is said to have failed."""
    done = subprocess.run(
        [sys.executable, "-m", "feedd", "demo", "--epochs", "1"],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "did not fall" not in done.stdout


@pytest.mark.parametrize("after_s", [3.0, *(pytest.param(one, marks=pytest.mark.nightly) for one in (0.5, 6.0))])
def test_interrupted_demo_leaves_nothing(tmp_path: Path, after_s: float) -> None:
    """Ctrl-C at any moment leaves no process, no file and no socket behind."""
    said, home = tmp_path / "said", tmp_path / "home"
    home.mkdir()
    with said.open("w") as sink:
        demo = subprocess.Popen(
            [sys.executable, "-m", "feedd", "demo"],
            stdout=sink,
            stderr=sink,
            env={**os.environ, "TMPDIR": str(home)},
        )
    children: set[psutil.Process] = set()
    until = time.monotonic() + after_s
    while time.monotonic() < until and demo.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children |= set(psutil.Process(demo.pid).children(recursive=True))
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(PATIENT_S) in {0, 130, -signal.SIGINT}, said.read_text()  # the last: before our first line ran
    assert not psutil.wait_procs(children, timeout=PATIENT_S)[1]
    assert not list(home.iterdir())
