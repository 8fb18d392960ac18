"""Which objects a node reads in an epoch never changes."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.channels.channel import Channel, Distribution
from feedd.channels.epoch_list import EpochList, epoch_order

DIGEST = bytes(range(32))


def test_orders_that_must_never_change() -> None:
    """The order of seed 7, in three epochs: a run that is resumed by a later version reads the same."""
    assert [epoch_order(12, 7, epoch, DIGEST).tolist() for epoch in range(3)] == [
        [1, 10, 6, 9, 4, 11, 2, 8, 5, 0, 3, 7],
        [8, 3, 10, 0, 7, 2, 4, 1, 9, 6, 11, 5],
        [7, 11, 6, 4, 3, 1, 8, 0, 10, 9, 5, 2],
    ]


def test_what_the_order_depends_on() -> None:
    """Seed, epoch and the list; each alone gives another order."""
    first = epoch_order(100, 7, 0, DIGEST).tolist()
    assert sorted(first) == list(range(100))
    assert first == epoch_order(100, 7, 0, DIGEST).tolist()
    others = [
        epoch_order(100, 8, 0, DIGEST).tolist(),
        epoch_order(100, -7, 0, DIGEST).tolist(),
        epoch_order(100, 7, 1, DIGEST).tolist(),
        epoch_order(100, 7, 0, DIGEST[:-1] + b"\0").tolist(),
        list(range(100)),
    ]
    assert first not in others
    assert len({tuple(order) for order in others}) == len(others)


def test_without_a_seed_nothing_is_shuffled() -> None:
    """The order of the list, in every epoch."""
    assert epoch_order(5, None, 3, DIGEST).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1, 3, 10, 11])
@pytest.mark.parametrize("seed", [None, 0, 3])
def test_each_object_goes_to_one_node(count: int, seed: int | None) -> None:
    """ShardedByS3Key: M/N objects within one for each node, all of them, each once, in every epoch."""
    channel = Channel("train", distribution=Distribution.SHARDED, seed=seed)
    for epoch in range(3):
        shares = [EpochList.of(channel, count, DIGEST, 4, rank).indices(epoch) for rank in range(4)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_objects_move_between_nodes_if_they_are_shuffled() -> None:
    """As in SageMaker: the list is shuffled first, and then dealt out."""
    channel = Channel("train", distribution=Distribution.SHARDED, seed=1)
    node = EpochList.of(channel, 100, DIGEST, 4, 0)
    assert set(node.indices(0).tolist()) != set(node.indices(1).tolist())
    assert node.indices(0).tolist() == epoch_order(100, 1, 0, DIGEST)[::4].tolist()


def test_all_nodes_read_a_replicated_channel() -> None:
    """FullyReplicated: each node reads all, in the same order."""
    channel = Channel("train", seed=1)
    orders = [EpochList.of(channel, 9, DIGEST, 4, rank).indices(2).tolist() for rank in range(4)]
    assert orders == [epoch_order(9, 1, 2, DIGEST).tolist()] * 4
