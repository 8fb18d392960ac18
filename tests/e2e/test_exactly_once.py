"""The main promise: every sample exactly once per epoch, in an order that depends on nothing accidental."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, Topology
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SHARDS, NODES, RANKS, EPOCHS = 24, 2, 2, 3
COUNTS = [17 + (shard * 7) % 11 for shard in range(SHARDS)]
Orders = dict[tuple[int, int], list[list[int]]]  # (epoch, rank) -> labels of each batch


def _fill(s3: S3Server) -> list[int]:
    ids: list[int] = []
    for shard, count in enumerate(COUNTS):
        s3.put("data", f"train/{shard:04d}.tar", numbered(shard, count, pad_bytes=6000))
        ids += [shard * 1000 + ordinal for ordinal in range(count)]
    return ids


def _read(daemon: Daemon, node: int, local: int, orders: Orders, failures: list[BaseException]) -> None:
    try:
        topology = Topology(NODES * RANKS, node * RANKS + local, RANKS, local, NODES, node)
        dataset = FeedDataset(
            "s3://data/train/",
            batch_size=8,
            fields={"cls": "int", "jpg": "image:32x32:random"},
            shuffle=True,
            seed=11,
            uneven="allow",
            address=daemon.address,
            topology=topology,
        )
        for epoch in range(EPOCHS):
            dataset.set_epoch(epoch)
            for batch in dataset:
                labels = batch["cls"].tolist()
                pixels = int(batch["jpg"].long().sum())
                orders.setdefault((epoch, topology.rank), []).append([*labels, pixels])
    except BaseException as error:  # noqa: BLE001 - handed to the test's thread
        failures.append(error)


def _run(start: Callable[..., Daemon], name: str, **options: Any) -> tuple[Orders, list[dict[str, float]]]:
    nodes = [start(f"{name}{node}", **options) for node in range(NODES)]
    orders: Orders = {}
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_read, args=(nodes[node], node, local, orders, failures))
        for node in range(NODES)
        for local in range(RANKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for node in nodes:
        node.wait_idle()
    seen = [node.metrics() for node in nodes]
    for node in nodes:
        assert node.stop() == 0
    return orders, seen


def test_two_nodes_two_ranks_three_epochs_cache_at_a_quarter(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each sample arrives once per epoch over all ranks; workers and part sizes change nothing, pixels included.

    With room in the cache a node fetches exactly its assignment in the first epoch, and nothing in later ones.
    """
    ids = _fill(s3)
    sizes = [len(numbered(shard, count, pad_bytes=6000)) for shard, count in enumerate(COUNTS)]
    quarter = f"{sum(sizes) // NODES // 4}"
    window = ("shuffle.window_shards=2",)
    first, seen = _run(daemons, "a", workers=1, cache_size=f"{max(int(quarter), 1 << 20)}", settings=window)
    for epoch in range(EPOCHS):
        labels = [label for rank in range(NODES * RANKS) for batch in first[epoch, rank] for label in batch[:-1]]
        assert Counter(labels) == Counter(ids)
    assert first[0, 0] != first[1, 0]
    assert all(node["feedd_cache_evictions_total"] > 0 for node in seen), "the cache was not small"
    parts = ("fetch.part_size=64KiB", "fetch.parts_in_flight=3", "fetch.hedge_share=0")  # slow machines send no more
    again, seen = _run(daemons, "b", workers=2, cache_size="1GiB", settings=(*window, *parts))
    assert again == first
    for node, counters in enumerate(seen):
        assert counters["feedd_source_bytes_total"] == sum(sizes[node::NODES])
