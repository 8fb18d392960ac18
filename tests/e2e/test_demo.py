"""``feedd demo`` as a user types it: servers, daemons and trainers as real processes, and numbers that must hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_demo_trains_and_reads_everything_once(nodes: int) -> None:
    """The loss falls, the first epoch reads each object once over all nodes, the second epoch reads none."""
    done = subprocess.run(
        [sys.executable, "-m", "feedd", "demo", "--nodes", str(nodes)],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the loss fell" in done.stdout
    shards = re.search(r"(\d+) shards", done.stdout)
    assert shards is not None
    rows = [line.split("│") for line in done.stdout.splitlines() if re.match(r"│\s+[01] ", line)]
    gets = [[int(count) for count in row[7].split("+")] for row in rows]
    assert [sum(counts) for counts in gets] == [int(shards[1]), 0], done.stdout
    assert all(len(counts) == nodes for counts in gets)
