"""Several daemons on one node: every sample once, each byte fetched once, and a lane that dies stops its ranks only."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from feedd_client import FeedDataset, Topology
from tests.budget import PATIENT_S, later
from tests.e2e.shards import numbered
from tests.fakes.forks import run
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("one_daemon")]


def _lanes_of(count: int) -> dict[str, Any]:
    """Return the options of a daemon; a slow machine gets no second requests."""
    return {"settings": (f"lanes={count}", "fetch.hedge_share=0")}


STANDING = _lanes_of(2)
"""For tests that leave its lanes alive; each has objects of its own, so that the lanes' caches are empty for it."""
SHARDS, SAMPLES, RANKS = 16, 12, 4
ALL = sorted(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(SAMPLES))


@dataclass(frozen=True)
class Data:
    """Sixteen shards of twelve samples.

    Attributes:
        server: the store.
        prefix: of the keys.
    """

    server: S3Server
    prefix: str

    @property
    def keys(self) -> list[str]:
        """Return the key of each shard."""
        return [f"{self.prefix}{shard:03d}.tar" for shard in range(SHARDS)]

    @property
    def url(self) -> str:
        """Return the URL of all."""
        return f"s3://data/{self.prefix}"

    @property
    def gets(self) -> Counter[str]:
        """Return how often each object was read."""
        return Counter(request.key for request in self.server.requests if request.method == "GET" and request.key)


@pytest.fixture
def data(s3: S3Server, request: pytest.FixtureRequest) -> Data:
    """Return the shards, under a prefix of this test."""
    found = Data(s3, f"{request.node.name}/")
    for shard, key in enumerate(found.keys):
        s3.put("data", key, numbered(shard, SAMPLES, pad_bytes=2000))
    return found


def _datasets(data: Data, daemon: Daemon, ranks: int = RANKS, **options: Any) -> list[FeedDataset]:
    """Return the datasets of all ranks of one node."""
    settings = {"batch_size": 3, "fields": {"cls": "int"}, "shuffle": True, "seed": 5, "uneven": "allow", **options}
    return [
        FeedDataset(data.url, address=daemon.address, topology=Topology(ranks, rank, ranks, rank), **settings)
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


@pytest.mark.parametrize(
    ("sharding", "lanes"),
    [later("size", 2), ("replicated", 2), later("key", 2), later("key", 4), later("size", 4), later("replicated", 4)],
)
def test_every_sample_once(data: Data, daemons: Callable[..., Daemon], lanes: int, sharding: str) -> None:
    """Two epochs over lanes have every sample once, and each lane fetches only its part."""
    daemon = daemons(**_lanes_of(lanes))
    datasets = _datasets(data, daemon, sharding=sharding)
    for epoch in range(2):
        for dataset in datasets:
            dataset.set_epoch(epoch)
        assert _samples(_walk(datasets)) == ALL
    assert daemon.metrics()["feedd_lane_up"] == lanes
    assert data.gets == Counter(data.keys)
    _close(datasets)
    daemon.wait_idle()


def test_one_rank_uses_one_lane(data: Data, daemons: Callable[..., Daemon]) -> None:
    """A job with one rank reads everything from one lane; another job on the same data shares its cache."""
    daemon = daemons(**_lanes_of(2))
    for _ in range(2):
        datasets = _datasets(data, daemon, ranks=1)
        assert _samples(_walk(datasets)) == ALL
        _close(datasets)
    assert data.gets == Counter(data.keys)


def test_a_killed_lane_stops_its_ranks_only(data: Data, daemons: Callable[..., Daemon]) -> None:
    """While a lane is dead, ranks of the others go on; its own go on after its restart, with no sample lost.

    A lane that is down makes the node unhealthy until it is back. After kill -9 of the supervisor no lane and no worker
    is left.
    """
    daemon = daemons("own", **_lanes_of(2))
    datasets = _datasets(data, daemon)
    passes = [iter(dataset) for dataset in datasets]
    walks = [[next(each)["cls"].tolist()] for each in passes]
    victim, other = _lanes(daemon)
    victim.send_signal(signal.SIGKILL)
    assert _until(lambda: _health(daemon)["state"], "down", daemon)
    for rank in (2, 3):  # of the second lane
        walks[rank] += [batch["cls"].tolist() for batch in passes[rank]]
    for rank in (0, 1):
        walks[rank] += [batch["cls"].tolist() for batch in passes[rank]]
    assert _samples(walks) == ALL
    assert other.is_running()
    assert daemon.metrics()["feedd_lane_restarts_total"] == 1
    assert _until(lambda: _health(daemon)["state"], "ready", daemon)
    _close(datasets)
    lanes = _lanes(daemon)
    workers = [worker for lane in lanes for worker in lane.children(recursive=True)]
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([*lanes, *workers], timeout=PATIENT_S)
    assert not alive
    assert len(gone) >= 2 * len(lanes) == 4


@pytest.mark.parametrize("now", [1, later(4)])
def test_a_run_goes_on_with_other_lanes(data: Data, daemons: Callable[..., Daemon], now: int) -> None:
    """A run that was saved with two lanes goes on where there is one daemon, or four: batch by batch as before."""
    two = daemons(**_lanes_of(2))
    whole = _datasets(data, two)
    expected = _walk(whole)
    first = _datasets(data, two)
    begun = _walk(first, 2)
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in first]
    _close([*whole, *first])
    other = daemons("other", **_lanes_of(now))
    rest = _datasets(data, other)
    for dataset, state in zip(rest, states, strict=True):
        dataset.load_state_dict(state)
    assert [one + two for one, two in zip(begun, _walk(rest), strict=True)] == expected
    _close(rest)


def test_partitions_make_steps_equal_whatever_the_lanes(data: Data, daemons: Callable[..., Daemon]) -> None:
    """With partitions, each step of all ranks has the same samples with one lane and with two."""
    steps = []
    for name, lanes in (("one", 1), ("d", 2)):
        datasets = _datasets(data, daemons(name, **_lanes_of(lanes)), partitions=4)
        walks = _walk(datasets)
        steps.append([sorted(itertools.chain(*step)) for step in itertools.zip_longest(*walks, fillvalue=[])])
        _close(datasets)
    assert steps[0] == steps[1]


def test_one_status_page(data: Data, daemons: Callable[..., Daemon]) -> None:
    """The node's pages answer for all lanes."""
    daemon = daemons(**_lanes_of(2))
    health = _health(daemon)
    assert health["state"] == "ready"
    assert [lane["state"] for lane in health["lanes"]] == ["ready", "ready"]
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/view.json", timeout=PATIENT_S) as page:
        view = json.loads(page.read())
    assert (view["lane_count"], view["state"]) == (2, "ready")


def _health(daemon: Daemon) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.status_port}/healthz", timeout=PATIENT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    return found


def _until(ask: Callable[[], str], wanted: str, daemon: Daemon) -> bool:
    deadline = time.monotonic() + PATIENT_S
    while ask() != wanted:
        assert time.monotonic() < deadline, daemon.log.read_text()[-2000:]
        time.sleep(0.02)
    return True


def test_nodes_become_lanes(data: Data, daemons: Callable[..., Daemon]) -> None:
    """A run of two nodes with two ranks goes on on one node with four ranks: each node is a lane now."""
    nodes = [daemons("one"), daemons("two")]
    settings: dict[str, Any] = {"batch_size": 3, "fields": {"cls": "int"}, "shuffle": True, "seed": 5}

    def ranks_of_nodes() -> list[FeedDataset]:
        return [
            FeedDataset(
                data.url,
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
    rest = _datasets(data, nodes[0])
    for dataset, before in zip(rest, first, strict=True):
        dataset.load_state_dict(before.state_dict())
    assert [one + two for one, two in zip(begun, _walk(rest), strict=True)] == expected
    _close([*whole, *first, *rest])


def test_commands_ask_all_lanes(data: Data, daemons: Callable[..., Daemon]) -> None:
    """Warm, ls, stat, rm and sessions speak of the node, not of one lane."""
    daemon = daemons(**_lanes_of(2))

    def feedd(*arguments: str) -> Any:
        done = run([*arguments, "--address", daemon.address], os.environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else None

    warmed = feedd("cache", "warm", data.url, "--json")
    assert warmed["warmed"]["objects"] == SHARDS
    reads = data.gets
    assert reads == Counter(data.keys)
    datasets = _datasets(data, daemon)
    assert _samples(_walk(datasets)) == ALL
    assert data.gets == reads  # each lane found its part
    assert len(_of(data, feedd("cache", "ls", "--json"))) == SHARDS
    assert feedd("cache", "stat", "--json")["size_bytes"] == 1 << 30
    listed = feedd("sessions", "ls", "--json")
    assert len(listed) == RANKS
    _close(datasets)
    daemon.wait_idle()
    feedd("cache", "rm", data.url, "--yes")
    assert not _of(data, feedd("cache", "ls", "--json"))


def _of(data: Data, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["url"].startswith(data.url)]
