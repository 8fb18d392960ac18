"""What ``make test`` runs tests with: each runs once, and what one of them does to its process fails that one only."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.forked import Shares
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import os, time, pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made")

@pytest.mark.parametrize("number", range(12))
def test_passes(number, made, tmp_path):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{__name__} {number} {os.environ['FORKED_WORKER']}\\n")
    print("said")
    time.sleep(0.02)

def test_fails():
    print("words of the failed")
    assert 1 == 2

def test_dies(made):
    os._exit(3)
"""


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.forked", "-p", "no:cacheprovider", "--forks=3", "-q"]
    command += ["-c/dev/null", f"--rootdir={folder}", f"--basetemp={folder / 'temp'}", *options, str(folder)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "RAN": str(folder / "ran")}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=environment, timeout=100
    )


@pytest.mark.slow
def test_every_test_runs_once_and_one_that_ends_its_process_fails(tmp_path: Path) -> None:
    """The others run, in several processes; what the failed one printed is shown."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    done = _run(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "4 failed, 24 passed" in done.stdout, done.stdout
    assert done.stdout.splitlines().count("words of the failed") == 2
    assert done.stdout.count("expected the test's process to live, it ended with 3") == 2
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted((name, int(number)) for name, number, _ in ran) == [
        *itertools.product(("test_one", "test_two"), range(12))
    ]
    assert len({worker for _, _, worker in ran}) > 1


def test_files_stay_together_until_there_is_no_other() -> None:
    """One process begins with the slow files and one with the last; then half of what the other has left is taken."""
    files = ["a"] * 3 + ["b"] * 2 + ["c"] * 4
    shares = Shares(files, [False] * 3 + [True] * 2 + [False] * 4, 2)
    assert [shares.take(0) for _ in range(2)] == [3, 4]
    assert [shares.take(1) for _ in range(2)] == [5, 6]
    assert [shares.take(0) for _ in range(3)] == [0, 1, 2]
    assert [shares.take(0), shares.take(1), shares.take(1)] == [8, 7, None]
    shares.give_back(1, [7])
    assert [shares.take(1), shares.take(0)] == [7, None]
