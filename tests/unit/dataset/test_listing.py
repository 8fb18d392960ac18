"""What a listing remembers, so that those who open it alike need not work it out again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from feedd.dataset import listing as module
from feedd.dataset.fingerprint import fingerprint
from feedd.dataset.listing import Listing
from feedd.dataset.sharding import balance
from feedd.dataset.step_counts import Uneven
from feedd.open_spec import OrderSpec
from feedd.values import ObjectRef, Topology

if TYPE_CHECKING:
    import pytest
    from numpy.typing import NDArray

    from feedd.dataset.packs import Packs


SIZES = (7, 1, 5, 3, 9, 2)


def _spec(nodes: int, node: int) -> OrderSpec:
    return OrderSpec(2, sharding="size", topology=Topology(nodes, node, 1, 0, nodes, node))


def test_sizes_are_balanced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares and steps of all nodes are one balancing; another number of nodes, or part of the shards, is another."""
    asked: list[tuple[int, int]] = []

    def counted(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        asked.append((sizes.shape[0], count))
        return balance(sizes, count)

    monkeypatch.setattr(module, "balance", counted)
    listing = Listing.of([ObjectRef("s3://b", str(n), size, "x") for n, size in enumerate(SIZES)], 0.0)
    listing.counts.update(enumerate(SIZES))
    read = [share.shards.tolist() for node in range(2) for share in listing.as_listed.shares(_spec(2, node))]
    assert read == [np.flatnonzero(balance(listing.sizes, 2) == node).tolist() for node in range(2)]
    assert listing.as_listed.steps(_spec(2, 1), Uneven.DROP) == 6
    assert asked == [(6, 2)]
    assert [share.shards.tolist() for share in listing.as_listed.shares(_spec(3, 0))] == [[4]]
    assert asked == [(6, 2), (6, 3)]
    cut = listing.partitioning(_spec(3, 0))
    assert cut.owners_of(listing.sizes[:4], 3).tolist() == balance(listing.sizes[:4], 3).tolist()
    assert asked == [(6, 2), (6, 3), (4, 3)]
    assert cut == listing.partitioning(_spec(3, 1))


def test_a_count_that_was_learned_outlives_a_newer_listing() -> None:
    """What a shard was found to hold, while a file beside it was read that says another number, stays."""
    refs = [ObjectRef("s3://b", str(n), 1, "x") for n in range(3)]
    held, newer = Listing.of(refs, 0.0), Listing.of(refs, 1.0)
    newer.counts.update({0: 5, 1: 6})
    held.as_listed.learn(1, 7)
    held.renew(newer)
    assert held.counts == {0: 5, 1: 7}
    held.as_listed.learn(1, 7)


def test_a_shuffled_run_is_another_one_than_in_former_versions() -> None:
    """The fingerprint has the growing windows of epoch 0 where it has any: shuffled, and not over packs."""
    listing = Listing.of([ObjectRef("s3://b", str(shard), 1, "e") for shard in range(4)], 0.0)
    order = OrderSpec(2, sharding="key", topology=Topology(1, 0, 1, 0, 1, 0))

    def former(*shuffle: object) -> bytes:
        facts = {"fields": [], "step_samples": 2, "partitions": 1, "sharding": "key", "seed": order.seed}
        return fingerprint(listing.digest, {**facts, "shuffle": shuffle})

    shuffled = replace(order, shuffle=True)
    assert listing.fingerprint(replace(order, shuffle=False), (), 4) == former(False, 1, 0)
    assert listing.fingerprint(shuffled, (), 4) == former(True, 4, 0, "growing") != former(True, 4, 0)
    packed = replace(listing, packs=(cast("Packs", None),))
    assert packed.fingerprint(shuffled, (), 4) == former(True, 4, 0)
