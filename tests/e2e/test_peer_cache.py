"""Daemons that share their caches: each shard is fetched from the store once per cluster."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from feedd_client import FeedDataset, Topology
from tests.e2e.daemon import free_port
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHARDS, SAMPLES, NODES = 12, 8, 4
ALL = sorted(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(SAMPLES))
PATIENT = "peers.timeout=20s"
"""A machine that runs all these processes at once is slow; what a short timeout costs is not tested here."""


@pytest.fixture
def data(s3: S3Server) -> S3Server:
    """Twelve shards of half a megabyte, which go the way of large bodies."""
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard:03d}.tar", numbered(shard, SAMPLES, pad_bytes=64_000))
    return s3


def _cluster(daemons: Callable[..., Daemon], count: int = NODES, *settings: str) -> list[Daemon]:
    """Start daemons that know each other."""
    ports = [free_port() for _ in range(count)]
    members = ",".join(f"127.0.0.1:{port}" for port in ports)
    common = (f"peers.members={members}", *settings)
    return [
        daemons(f"d{number}", settings=(f"peers.listen=127.0.0.1:{port}", *common)) for number, port in enumerate(ports)
    ]


def _read_all(cluster: list[Daemon]) -> list[list[int]]:
    """Read an epoch of a replicated data set on all nodes at once; return the samples of each."""

    def read(node: int) -> list[int]:
        dataset = FeedDataset(
            "s3://data/train/",
            address=cluster[node].address,
            topology=Topology(len(cluster), node, 1, 0, len(cluster), node),
            batch_size=4,
            fields={"cls": "int"},
            shuffle=True,
            seed=3,
            sharding="replicated",
            uneven="allow",
        )
        try:
            return [number for batch in dataset for number in batch["cls"].tolist()]
        finally:
            dataset.close()

    with ThreadPoolExecutor(len(cluster)) as pool:
        return list(pool.map(read, range(len(cluster))))


def test_four_nodes_fetch_each_shard_once(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """All nodes need all shards; the store sends each byte once, and the nodes send each other the rest."""
    cluster = _cluster(daemons, NODES, PATIENT)
    assert [sorted(samples) for samples in _read_all(cluster)] == [ALL] * NODES
    gets = Counter(request.key for request in data.requests if request.method == "GET" and request.key)
    assert gets == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))
    totals = [daemon.metrics() for daemon in cluster]
    sent, read = (sum(one[f"feedd_peer_{way}_bytes_total"] for one in totals) for way in ("sent", "read"))
    assert sent == read == (NODES - 1) * sum(one["feedd_source_bytes_total"] for one in totals)
