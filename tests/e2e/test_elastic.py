"""A run that stops on some nodes and goes on on others takes the same samples in every step of all ranks together."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset, StateError, Topology
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COUNTS = [9 + (shard * 7) % 11 for shard in range(24)]
STEP_SAMPLES, PARTITIONS = 32, 4


def _datasets(nodes: list[Daemon], ranks: int) -> list[FeedDataset]:
    """Return every rank's dataset."""
    world = len(nodes) * ranks
    return [
        FeedDataset(
            "s3://data/train/",
            batch_size=STEP_SAMPLES // world,
            fields={"cls": "int"},
            shuffle=True,
            seed=5,
            uneven="allow",
            partitions=PARTITIONS,
            address=daemon.address,
            topology=Topology(world, node * ranks + rank, ranks, rank, len(nodes), node),
        )
        for (node, daemon), rank in itertools.product(enumerate(nodes), range(ranks))
    ]


def _steps(datasets: list[FeedDataset], count: int | None = None) -> list[list[int]]:
    """Read one pass on every rank, or its first steps; return the labels of each step of all ranks, sorted."""
    walks = []
    for dataset in datasets:
        walk: list[list[int]] = []
        for batch in dataset:
            walk.append(batch["cls"].tolist())
            if len(walk) == count:
                break
        walks.append(walk)
    return [sorted(itertools.chain(*step)) for step in itertools.zip_longest(*walks, fillvalue=[])]


def test_other_nodes_and_ranks_go_on(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """From 2 nodes x 2 ranks to 1 x 2 to 4 x 1, each from the state of any one rank: as if nothing had happened."""
    for shard, count in enumerate(COUNTS):
        s3.put("data", f"train/{shard:04d}.tar", numbered(shard, count, pad_bytes=100))
    nodes = [daemons(f"node{number}", workers=1, settings=("shuffle.window_shards=2",)) for number in range(4)]
    calm = _datasets(nodes[:1], 1)
    whole = [_steps(calm), _steps(calm)]
    every = sorted(shard * 1000 + ordinal for shard, count in enumerate(COUNTS) for ordinal in range(count))
    assert [sorted(itertools.chain(*epoch)) for epoch in whole] == [every, every]

    seen: list[list[int]] = []
    state: dict[str, Any] = {}
    for (node_count, ranks), step_count in (((2, 2), 3), ((1, 2), 2), ((4, 1), None)):
        datasets = _datasets(nodes[:node_count], ranks)
        for dataset in datasets:
            if state:
                dataset.load_state_dict(json.loads(json.dumps(state)))
        seen += _steps(datasets, step_count)
        state = datasets[-1].state_dict()
    assert seen == whole[0]
    assert _steps(datasets) == whole[1]
    with pytest.raises(StateError, match="step_samples"):
        _refused(nodes[0], state)
    for dataset in (*calm, *datasets):
        dataset.close()
    for node in nodes:
        node.wait_idle()


def _refused(node: Daemon, state: dict[str, Any]) -> None:
    dataset = FeedDataset(
        "s3://data/train/",
        batch_size=STEP_SAMPLES + 4,
        fields={"cls": "int"},
        shuffle=True,
        seed=5,
        partitions=PARTITIONS,
        address=node.address,
        topology=Topology(),
    )
    dataset.load_state_dict(state)
    iter(dataset)
