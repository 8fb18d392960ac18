"""Runs a command of feedd on a Ray cluster of two nodes, one of which may be killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

PYTHON: Final = os.environ.get("RAY_PYTHON", sys.executable)
"""An interpreter with feedd and ray, which has many dependencies."""

_CLUSTER: Final = """
import os, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
import psutil  # ray brings it

node = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args=node)
other = cluster.add_node(**node)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address

def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""

def watch(sign):
    raylet = psutil.Process(other.all_processes["raylet"][0].process.pid)
    while not (
        len(list(Path(sign).parent.glob(Path(sign).name))) > 1
        if "/" in sign
        else any(sign in command(child) for child in raylet.children(recursive=True))
    ):
        time.sleep(0.02)
    cluster.remove_node(other, allow_graceful=False)
    print("a node was killed", file=sys.stderr)

if sys.argv[1]:
    threading.Thread(target=watch, args=(sys.argv[1],), daemon=True).start()
from feedd.cli import main
sys.argv[1:] = sys.argv[2:]
try:
    main()
finally:
    cluster.shutdown()
"""


def run_on_two(*words: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command on two nodes; skip the test if there is no Ray.

    Args:
        words: the command.
        kill_at: kills the second node when two files match this pattern, or, if it has no slash, when a process of the
            node has it in its command line. Empty: both nodes stay.
    """
    if subprocess.run([PYTHON, "-c", "import ray.cluster_utils"], capture_output=True, check=False).returncode:
        pytest.skip("needs ray: name an interpreter that has feedd and ray in RAY_PYTHON")
    command = [PYTHON, "-c", _CLUSTER, kill_at, *words, "--engine", "ray", "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
