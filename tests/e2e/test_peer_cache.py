"""Daemons that share their caches: each shard is fetched from the store once per cluster."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd_client import FeedDataset, Topology
from tests.budget import PATIENT_S
from tests.e2e.daemon import free_port
from tests.e2e.shards import numbered
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SHARDS, SAMPLES, NODES = 12, 8, 4
ALL = sorted(shard * 1000 + ordinal for shard in range(SHARDS) for ordinal in range(SAMPLES))
PATIENT = ("peers.timeout=60s", "fetch.read_timeout=10m", "fetch.connect_timeout=10m")
"""A machine that runs all these processes at once is slow; what a short timeout costs is not tested here."""


@pytest.fixture
def data(s3: S3Server) -> S3Server:
    """Twelve shards of half a megabyte, which go the way of large bodies."""
    for shard in range(SHARDS):
        s3.put("data", f"train/{shard:03d}.tar", numbered(shard, SAMPLES, pad_bytes=64_000))
    return s3


def _cluster(daemons: Callable[..., Daemon], count: int, *settings: str) -> list[Daemon]:
    """Start daemons that know each other."""
    ports = [free_port() for _ in range(count)]
    members = ",".join(f"127.0.0.1:{port}" for port in ports)
    common = (f"peers.members={members}", "fetch.hedge_share=0", *settings)
    with ThreadPoolExecutor(count) as pool:
        return list(
            pool.map(
                lambda at: daemons(f"d{at}", settings=(f"peers.listen=127.0.0.1:{ports[at]}", *common)), range(count)
            )
        )


def _dataset(cluster: list[Daemon], node: int, url: str = "s3://data/train/", **options: Any) -> FeedDataset:
    """Return a replicated data set, as a node's only rank opens it."""
    return FeedDataset(
        url,
        address=cluster[node].address,
        topology=Topology(len(cluster), node, 1, 0, len(cluster), node),
        batch_size=4,
        fields=options.pop("fields", {"cls": "int"}),
        shuffle=True,
        seed=3,
        sharding="replicated",
        uneven="allow",
        **options,
    )


def _read_all(cluster: list[Daemon], field: str = "cls", **options: Any) -> list[list[int]]:
    """Read an epoch on all nodes at once; return the samples of each."""

    def read(node: int) -> list[int]:
        with closing(_dataset(cluster, node, **options)) as dataset:
            return [number for batch in dataset for number in batch[field].flatten().tolist()]

    with ThreadPoolExecutor(len(cluster)) as pool:
        return list(pool.map(read, range(len(cluster))))


def _gets(server: S3Server) -> Counter[str]:
    return Counter(request.key for request in server.requests if request.method == "GET" and request.key)


def test_four_nodes_fetch_each_shard_once(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """All nodes need all shards; the store sends each byte once, and the nodes send each other the rest."""
    cluster = _cluster(daemons, NODES, *PATIENT)
    assert [sorted(samples) for samples in _read_all(cluster)] == [ALL] * NODES
    assert _gets(data) == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))
    totals = [daemon.metrics() for daemon in cluster]
    sent, read = (sum(one[f"feedd_peer_{way}_bytes_total"] for one in totals) for way in ("sent", "read"))
    assert sent == read == (NODES - 1) * sum(one["feedd_source_bytes_total"] for one in totals)


@pytest.mark.nightly
def test_four_nodes_with_certificates(data: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """The same with TLS in both directions, through the options of the daemon."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("node")
    files = (f"tls.cert={cert}", f"tls.key={key}", f"peers.ca={authority.ca_path}")
    cluster = _cluster(daemons, NODES, *PATIENT, *files)
    assert [sorted(samples) for samples in _read_all(cluster)] == [ALL] * NODES
    assert _gets(data) == Counter(f"train/{shard:03d}.tar" for shard in range(SHARDS))


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_peer_that_fails_in_an_epoch(data: S3Server, daemons: Callable[..., Daemon], how: signal.Signals) -> None:
    """The other node's run goes on with every sample once: what the peer held comes from the store."""
    slow = ("fetch.parts_in_flight=1", "fetch.bytes_in_flight=1MiB")  # most shards are still to come then
    cluster = _cluster(daemons, 2, "peers.timeout=100ms", *slow)
    with closing(_dataset(cluster, 0)) as dataset:
        batches = iter(dataset)
        samples = next(batches)["cls"].tolist()
        process = cluster[1].process
        assert process is not None
        process.send_signal(how)
        try:
            for batch in batches:
                samples += batch["cls"].tolist()
            deadline = time.monotonic() + PATIENT_S
            while not cluster[0].metrics()["feedd_peer_paused"]:
                assert time.monotonic() < deadline, "the peer's failure was not noticed"
                time.sleep(0.05)
        finally:
            if how is signal.SIGSTOP:
                process.send_signal(signal.SIGCONT)
    assert sorted(samples) == ALL
    assert set(_gets(data)) == {f"train/{shard:03d}.tar" for shard in range(SHARDS)}


@pytest.mark.nightly
def test_a_node_that_joins_later_reads_from_the_others(data: S3Server, daemons: Callable[..., Daemon]) -> None:
    """As after an elastic change: the new node gets all that the others hold without the store."""
    cluster = _cluster(daemons, 3, *PATIENT)
    for node in (0, 1):
        with closing(_dataset(cluster, node)) as dataset:
            assert sorted(number for batch in dataset for number in batch["cls"].tolist()) == ALL
    before = _gets(data)
    with closing(_dataset(cluster, 2)) as dataset:
        assert sorted(number for batch in dataset for number in batch["cls"].tolist()) == ALL
    assert _gets(data) == before


@pytest.mark.nightly
def test_packs_and_spans_travel(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Small objects, which nodes pack alike, and spans of a large file come from the store once per cluster, too."""
    for number in range(400):
        s3.put("data", f"small/{number:03d}.cls", b"%d" % number)
    tokens = np.arange(3 << 20, dtype=np.uint16)
    s3.put("data", "tokens/all.bin", tokens.tobytes())
    cluster = _cluster(daemons, 3, *PATIENT, "fetch.span_size=1MiB")
    for samples in _read_all(cluster, url="s3://data/small/"):
        assert sorted(samples) == list(range(400))
    assert set(_gets(s3).values()) == {1}
    fields = {"tokens": "tokens:uint16:1024"}
    read = _read_all(cluster, "tokens", url="s3://data/tokens/", fields=fields)
    assert len({(len(samples), sum(samples)) for samples in read}) == 1
    assert len(read[0]) >= len(tokens)
    sent = sum(daemon.metrics()["feedd_source_bytes_total"] for daemon in cluster)
    assert sent < 1.1 * tokens.nbytes
