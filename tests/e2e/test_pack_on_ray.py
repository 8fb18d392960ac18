"""``feedd pack --engine ray`` on a cluster of two nodes, one of which ends meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.unit.pack.packing import folder, options, packed, shards

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(240)]

PYTHON: Final = os.environ.get("RAY_PYTHON", sys.executable)
"""An interpreter with feedd and ray, which has many dependencies."""

_CLUSTER: Final = """
import os, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster

out, lose = Path(sys.argv[1]), sys.argv[2] == "lose"
node = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args=node)
other = cluster.add_node(**node)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address

def watch():
    while len(list(out.glob("shard-*"))) < 2:
        time.sleep(0.02)
    cluster.remove_node(other, allow_graceful=False)

if lose:
    threading.Thread(target=watch, daemon=True).start()
from feedd.cli import main
sys.argv[1:] = ["pack", *sys.argv[3:]]
try:
    main()
finally:
    cluster.shutdown()
"""


@pytest.mark.parametrize("case", ["keep", "lose"])
def test_two_nodes_write_the_same_bytes(tmp_path: Path, case: str) -> None:
    """The shards and the manifest are those of one process, even if a node is killed with a task on it."""
    if subprocess.run([PYTHON, "-c", "import ray.cluster_utils"], capture_output=True, check=False).returncode:
        pytest.skip("needs ray: name an interpreter that has feedd and ray in RAY_PYTHON")
    folder(tmp_path / "in", each=400)
    asyncio.run(packed(options(tmp_path / "in"), tmp_path / "one"))
    arguments = [str(tmp_path / "in"), str(tmp_path / "ray"), "--format", "tar", "--shard-size", "1MiB"]
    done = subprocess.run(
        [PYTHON, "-c", _CLUSTER, str(tmp_path / "ray"), case, *arguments, "--engine", "ray", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == len(shards(tmp_path / "one")) > 20
    assert shards(tmp_path / "ray") == shards(tmp_path / "one")
    manifests = [json.loads((tmp_path / name / "_feedd_pack.json").read_bytes()) for name in ("one", "ray")]
    assert manifests[0] == manifests[1]
    assert not (tmp_path / "ray" / ".feedd_pack").exists()
