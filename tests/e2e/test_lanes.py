"""Several daemons on one node: every sample once, each byte fetched once, and a lane that dies stops its ranks only."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from feedd_client import FeedDataset, Topology
from tests.budget import later
from tests.e2e.shards import numbered
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHARDS, SAMPLES, RANKS = 16, 12, 4
ALL = sorted(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(SAMPLES))


@pytest.fixture
def data(s3: S3Server) -> S3Server:
    """Sixteen shards of twelve samples."""
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard:03d}.tar", numbered(shard, SAMPLES, pad_bytes=2000))
    return s3


def _datasets(daemon: Daemon, ranks: int = RANKS, **options: Any) -> list[FeedDataset]:
    """Return the datasets of all ranks of one node."""
    settings = {"batch_size": 3, "fields": {"cls": "int"}, "shuffle": True, "seed": 5, "uneven": "allow", **options}
    return [
        FeedDataset("s3://data/train/", address=daemon.address, topology=Topology(ranks, rank, ranks, rank), **settings)
        for rank in range(ranks)
    ]


def _walk(datasets: list[FeedDataset], count: int | None = None) -> list[list[list[int]]]:
    """Read one pass on every rank, or its first steps; return each rank's batches."""
    return [[batch["cls"].tolist() for batch in itertools.islice(dataset, count)] for dataset in datasets]


def _samples(walks: list[list[list[int]]]) -> list[int]:
    return sorted(number for walk in walks for batch in walk for number in batch)


def _lanes(daemon: Daemon) -> list[psutil.Process]:
    """Return the lanes' processes, by number."""
    assert daemon.process is not None
    found = [child for child in psutil.Process(daemon.process.pid).children() if "--lane" in command_of(child)]
    return sorted(found, key=lambda process: command_of(process)[command_of(process).index("--lane") + 1])


def _close(datasets: list[FeedDataset]) -> None:
    for dataset in datasets:
        dataset.close()


def _gets(server: S3Server) -> Counter[str]:
    """Return how often each object was read."""
    return Counter(request.key for request in server.requests if request.method == "GET" and request.key)


@pytest.mark.parametrize(
    ("sharding", "lanes"),
    [("size", 2), ("replicated", 2), later("key", 2), later("key", 4), later("size", 4), later("replicated", 4)],
)
def test_every_sample_once(data: S3Server, daemons: Callable[..., Daemon], lanes: int, sharding: str) -> None:
    """Two epochs over lanes have every sample once, and each lane fetches only its part."""
    daemon = daemons(settings=(f"lanes={lanes}",))
    datasets = _datasets(daemon, sharding=sharding)
    for epoch in range(2):
        for dataset in datasets:
            dataset.set_epoch(epoch)
        assert _samples(_walk(datasets)) == ALL
    assert daemon.metrics()["feedd_lane_up"] == lanes
    assert _gets(data) == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))
    _close(datasets)
    daemon.wait_idle()


def test_one_rank_uses_one_lane(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A job with one rank reads everything from one lane; another job on the same data shares its cache."""
    daemon = daemons(settings=("lanes=2",))
    for _ in range(2):
        datasets = _datasets(daemon, ranks=1)
        assert _samples(_walk(datasets)) == ALL
        _close(datasets)
    assert _gets(data) == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))


def test_a_killed_lane_stops_its_ranks_only(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """While a lane is dead, ranks of the others go on; its own go on after its restart, with no sample lost."""
    daemon = daemons(settings=("lanes=2",))
    datasets = _datasets(daemon)
    passes = [iter(dataset) for dataset in datasets]
    walks = [[next(each)["cls"].tolist()] for each in passes]
    victim, other = _lanes(daemon)
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    for rank in (2, 3):  # of the second lane
        walks[rank] += [batch["cls"].tolist() for batch in passes[rank]]
    for rank in (0, 1):
        walks[rank] += [batch["cls"].tolist() for batch in passes[rank]]
    assert _samples(walks) == ALL
    assert other.is_running()
    assert daemon.metrics()["feedd_lane_restarts_total"] == 1
    _close(datasets)


@pytest.mark.parametrize("now", [later(1), 4])
def test_a_run_goes_on_with_other_lanes(data: S3Server, daemons: Callable[..., Daemon], now: int) -> None:
    """A run that was saved with two lanes goes on where there is one daemon, or four: batch by batch as before."""
    two = daemons("two", settings=("lanes=2",))
    whole = _datasets(two)
    expected = _walk(whole)
    first = _datasets(two)
    begun = _walk(first, 2)
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in first]
    _close([*whole, *first])
    other = daemons("other", settings=(f"lanes={now}",))
    rest = _datasets(other)
    for dataset, state in zip(rest, states, strict=True):
        dataset.load_state_dict(state)
    assert [one + two for one, two in zip(begun, _walk(rest), strict=True)] == expected
    _close(rest)


def test_partitions_make_steps_equal_whatever_the_lanes(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """With partitions, each step of all ranks has the same samples with one lane and with two."""
    steps = []
    for lanes in (1, 2):
        datasets = _datasets(daemons(f"d{lanes}", settings=(f"lanes={lanes}",)), partitions=4)
        walks = _walk(datasets)
        steps.append([sorted(itertools.chain(*step)) for step in itertools.zip_longest(*walks, fillvalue=[])])
        _close(datasets)
    assert steps[0] == steps[1]


def test_one_status_page(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The node's pages answer for all lanes; a lane that is down makes it unhealthy until it is back."""
    daemon = daemons(settings=("lanes=2",))
    health = _health(daemon)
    assert health["state"] == "ready"
    assert [lane["state"] for lane in health["lanes"]] == ["ready", "ready"]
    _lanes(daemon)[1].send_signal(signal.SIGKILL)
    seen = _until(lambda: _health(daemon)["state"], "down", daemon)
    assert seen
    assert _until(lambda: _health(daemon)["state"], "ready", daemon)
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/view.json", timeout=5) as page:
        view = json.loads(page.read())
    assert (view["lane_count"], view["state"]) == (2, "ready")


def test_lanes_end_with_their_supervisor(daemons: Callable[..., Daemon]) -> None:
    """After kill -9 of the supervisor no lane and no worker is left."""
    daemon = daemons(settings=("lanes=2",))
    assert daemon.process is not None
    lanes = _lanes(daemon)
    workers = [worker for lane in lanes for worker in lane.children(recursive=True)]
    os.kill(daemon.process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([*lanes, *workers], timeout=15)
    assert not alive
    assert len(gone) >= 2


def _health(daemon: Daemon) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    return found


def _until(ask: Callable[[], str], wanted: str, daemon: Daemon) -> bool:
    deadline = time.monotonic() + 30
    while ask() != wanted:
        assert time.monotonic() < deadline, daemon.log.read_text()[-2000:]
        time.sleep(0.02)
    return True


def test_nodes_become_lanes(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A run of two nodes with two ranks goes on on one node with four ranks: each node is a lane now."""
    nodes = [daemons("one"), daemons("two")]
    settings: dict[str, Any] = {"batch_size": 3, "fields": {"cls": "int"}, "shuffle": True, "seed": 5}

    def ranks_of_nodes() -> list[FeedDataset]:
        return [
            FeedDataset(
                "s3://data/train/",
                address=nodes[node].address,
                topology=Topology(4, 2 * node + rank, 2, rank, 2, node),
                uneven="allow",
                **settings,
            )
            for node, rank in itertools.product(range(2), range(2))
        ]

    whole = ranks_of_nodes()
    expected = _walk(whole)
    first = ranks_of_nodes()
    begun = _walk(first, 2)
    rest = _datasets(nodes[0])
    for dataset, before in zip(rest, first, strict=True):
        dataset.load_state_dict(before.state_dict())
    assert [one + two for one, two in zip(begun, _walk(rest), strict=True)] == expected
    _close([*whole, *first, *rest])


def test_commands_ask_all_lanes(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Warm, ls, stat, rm and sessions speak of the node, not of one lane."""
    daemon = daemons(settings=("lanes=2",))

    def feedd(*arguments: str) -> Any:
        command = [sys.executable, "-m", "feedd", *arguments, "--address", daemon.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else None

    warmed = feedd("cache", "warm", "s3://data/train/", "--json")
    assert warmed["warmed"]["objects"] == SHARDS
    reads = _gets(data)
    assert reads == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))
    datasets = _datasets(daemon)
    assert _samples(_walk(datasets)) == ALL
    assert _gets(data) == reads  # each lane found its part
    assert len(feedd("cache", "ls", "--json")) == SHARDS
    assert feedd("cache", "stat", "--json")["size_bytes"] == 1 << 30
    listed = feedd("sessions", "ls", "--json")
    assert len(listed) == RANKS
    _close(datasets)
    daemon.wait_idle()
    feedd("cache", "rm", "--all", "--yes")
    assert len(feedd("cache", "ls", "--json")) == 0
