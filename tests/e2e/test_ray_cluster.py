"""``feedd.ray`` on a real cluster of two nodes: a daemon on each, one node killed in the middle of an epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from tests.budget import PATIENT_S
from tests.e2e.shards import tar

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(240)]

PYTHON: Final = os.environ.get("RAY_PYTHON", sys.executable)
"""An interpreter with feedd, feedd-client, torch and ray."""
SHARDS: Final = 8
EACH: Final = 40

_CLUSTER: Final = """
import json, os, signal, sys, time
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from feedd.ray import daemon_address, start_daemons, stop_daemons

case, urls = sys.argv[1], sys.argv[2]
settings = {"decode.workers": 1, "cache.size": "64MiB", "cache.free_reserve": "16MiB"}
node = {"num_cpus": 2, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args=node)
other = cluster.add_node(**node)
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")

class Trainer:
    def __init__(self, rank, world_size, state=None):
        from feedd_client import FeedDataset, Topology
        self.data = FeedDataset(
            urls, batch_size=16 // world_size, fields={"cls": "int"}, shuffle=True, seed=3, uneven="allow",
            partitions=2, address=daemon_address(settings), topology=Topology(world_size, rank, 1, 0, world_size, rank),
        )
        if state is not None:
            self.data.load_state_dict(state)
        self.batches = iter(self.data)

    def steps(self, count):
        labels = []
        while len(labels) < count and (batch := next(self.batches, None)) is not None:
            labels.append(batch["cls"].tolist())
        return sum(labels, []), self.data.state_dict()

    def address(self):
        return daemon_address()

    def again(self):
        self.batches = iter(self.data)
        return self.steps(999)

def trainer(node_id, *arguments):
    placed = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(Trainer).options(num_cpus=0, scheduling_strategy=placed).remote(*arguments)

result = {}
try:
    if case == "wrong":
        try:
            start_daemons({"cache.size": "much"})
        except Exception as error:
            result["error"] = [type(error).__name__, str(error)]
    else:
        addresses = start_daemons(settings)
        assert start_daemons({"cache.size": "1MiB"}) == addresses
        head = ray.get_runtime_context().get_node_id()
        (lost,) = set(addresses) - {head}
        trainers = [trainer(head, 0, 2), trainer(lost, 1, 2)]
        result["addresses"] = list(addresses.values())
        result["seen_by_workers"] = [ray.get(one.address.remote()) for one in trainers]
        steps = [ray.get([one.steps.remote(8) for one in trainers])]
        if case in ("daemon", "actor"):
            actor = ray.get_actor(f"daemon-{lost}", namespace="feedd")
            first = ray.get(actor.process_id.remote())
            if case == "daemon":
                os.kill(first, signal.SIGKILL)
            else:
                ray.kill(actor, no_restart=False)
                assert start_daemons() == addresses
            steps.append(ray.get([one.steps.remote(999) for one in trainers]))
            while (now := ray.get(actor.process_id.remote())) in (0, first):
                time.sleep(0.1)
            result["second"] = sum((one for one, _ in ray.get([one.again.remote() for one in trainers])), [])
        elif case == "node":
            cluster.remove_node(other, allow_graceful=False)
            state = steps[0][0][1]
            ray.kill(trainers[0])
            steps.append([ray.get(trainer(head, 0, 1, state).steps.remote(999))])
            result["nodes"] = list(start_daemons()) == [head]
        elif case == "stop":
            steps.append(ray.get([one.steps.remote(999) for one in trainers]))
            stop_daemons()
            result["after_stop"] = ray.get(trainers[0].address.remote()) == addresses[head]
        result["labels"] = [label for step in steps for labels, _ in step for label in labels]
finally:
    ray.shutdown()
    cluster.shutdown()
print(json.dumps(result))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of shards, and a temporary folder of the cluster, in which nothing runs and lies afterwards."""
    if subprocess.run([PYTHON, "-c", "import ray.cluster_utils"], capture_output=True, check=False).returncode:
        pytest.skip("needs ray: name an interpreter that has feedd, feedd-client, torch and ray in RAY_PYTHON")
    data = tmp_path / "data"
    data.mkdir()
    for shard in range(SHARDS):
        samples = [(f"{number:06d}", {"cls": str(shard * EACH + number).encode()}) for number in range(EACH)]
        (data / f"{shard}.tar").write_bytes(tar(samples))
    with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp", ignore_cleanup_errors=True) as home:
        yield Path(home)
        deadline_s = time.monotonic() + PATIENT_S
        while left := [process for process in psutil.process_iter(["cmdline"]) if _is_of(process, home)]:
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)
        logs = [path.read_text() for path in Path(home).glob("feedd-*/ray-*/feedd.log")]
        assert not [path.name for path in Path(home).iterdir() if path.name.startswith("feedd-cache")], logs


def _is_of(process: psutil.Process, home: str) -> bool:
    return any(home in word for word in process.info["cmdline"] or ()) and "feedd" in str(process.info["cmdline"])


def _outcome(folder: Path, data: Path, case: str) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, "-c", _CLUSTER, case, f"file://{data}/"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=os.environ | {"TMPDIR": str(folder), "RAY_raylet_start_wait_time_s": "60"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("case", ["daemon", "actor", "node", "stop"])
def test_every_sample_arrives_once(tmp_path: Path, folder: Path, case: str) -> None:
    """Each node has a daemon. An epoch is read exactly once, even if a daemon, its actor or its node is killed."""
    outcome = _outcome(folder, tmp_path / "data", case)
    assert len(set(outcome["addresses"])) == 2
    assert sorted(outcome["seen_by_workers"]) == sorted(outcome["addresses"])
    assert sorted(outcome["labels"]) == list(range(SHARDS * EACH))
    assert sorted(outcome.get("second", outcome["labels"])) == list(range(SHARDS * EACH))
    assert outcome.get("nodes", True)
    assert outcome.get("after_stop", True)


def test_a_wrong_setting_is_told_with_the_log(tmp_path: Path, folder: Path) -> None:
    """A daemon that cannot start is an error of the driver at once. The error has the daemon's own message."""
    name, text = _outcome(folder, tmp_path / "data", "wrong")["error"]
    assert name == "ResourceExhausted"
    assert "exit code 2" in text
    assert "cache.size = much" in text
