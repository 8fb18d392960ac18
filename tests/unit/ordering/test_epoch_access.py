"""When the cache hears that a plain epoch needs a shard: from any window on, in this epoch or in the next."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.dataset.assignment import Assignment
from feedd.dataset.listing import Listing
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.epoch_access import _Lookup, readahead_count
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, ObjectRef, Topology
from tests.budget import budget
from tests.fakes.specs import open_spec


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[Listing, Reader]:
    """Return a dataset, and the reader of one of its nodes; partitions of samples may share a shard."""
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=14))
    refs = [ObjectRef("s3://b", f"{number:03}", 1 + 10 * count, str(number)) for number, count in enumerate(counts)]
    listing = Listing.of(refs, 0.0)
    listing.counts.update(enumerate(counts))
    nodes, parts = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (1, 6), (2, 3), (9, 1), (12, 1)]))
    topology = Topology(world_size=nodes, node_count=nodes)
    sharding = draw(st.sampled_from(["key", "sample"]))
    spec = open_spec(("s3://b/",), 6, sharding=sharding, partitions=nodes * parts, topology=topology)
    options = ReaderOptions(draw(st.integers(0, 3)), draw(st.booleans()), draw(st.integers(1, 3)), 6, topology)
    return listing, Reader(listing.as_listed.shares(spec.order), options, listing.counts)


@settings(max_examples=budget(150), deadline=None)
@given(_nodes(), st.integers(0, 2), st.data())
def test_uses_as_looked_up_one_by_one(made: tuple[Listing, Reader], epoch: int, data: st.DataObject) -> None:
    """A shard is due at its first place from the window on, then in the next epoch; others are never due."""
    listing, reader = made
    view = listing.as_listed
    access = reader.access_at(view, Cursor(epoch))
    plan = reader.epoch_map(Cursor(epoch))
    sizes: list[int] = listing.sizes.tolist()
    orders = [plan.order.tolist(), reader.order_of(epoch + 1).tolist()]
    starts = [[sum(sizes[shard] for shard in order[:place]) for place in range(len(order) + 1)] for order in orders]

    def due(shard: int, window: int) -> float:
        here = [place for place, one in enumerate(orders[0]) if one == shard]
        if not here:
            return math.inf
        left = [place for place in here if place >= plan.position(window)]
        return float(starts[0][left[0]] if left else starts[0][-1] + starts[1][orders[1].index(shard)])

    window = data.draw(st.integers(0, plan.window_count))
    refs = view.refs
    uses = access.next_uses(refs, window).tolist()
    assert uses == [due(shard, window) for shard in range(len(refs))]
    assert access.next_uses([replace(ref, etag="new") for ref in refs], window).tolist() == [math.inf] * len(refs)
    changed = {shard for shard in range(len(refs)) if due(shard, window) != due(shard, window + 1)}
    assert changed <= set(access.ending(window)), "the cache is told of all shards whose next use changes"


def _reader(counts: list[int], *, window_shards: int, seed: int = 0, parts: int = 1) -> tuple[Listing, Reader]:
    """Return shards of so many samples, and the reader of the only node, with batches of 6."""
    refs = [ObjectRef("s3://b", f"{number:03}", 1 + number, str(number)) for number in range(len(counts))]
    listing = Listing.of(refs, 0.0)
    listing.counts.update(enumerate(counts))
    shares = listing.as_listed.shares(open_spec(("s3://b/",), 6, partitions=parts).order)
    return listing, Reader(shares, ReaderOptions(seed, True, window_shards, 6, Topology()), listing.counts)


@settings(max_examples=budget(100), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=20), st.integers(2, 9), st.integers(0, 99), st.integers(0, 1))
def test_shards_of_few_samples_are_wished_for_in_the_order_of_need(
    counts: list[int], window_shards: int, seed: int, epoch: int
) -> None:
    """Shards come in the order in which steps need them; those without samples come last in their window."""
    listing, reader = _reader(counts, window_shards=window_shards, seed=seed)
    plan, access = reader.epoch_map(Cursor(epoch)), reader.access_at(listing.as_listed, Cursor(epoch))
    needed: list[int] = []
    step = 0
    while isinstance(rows := reader.rows(Cursor(epoch, step)), BatchRows):
        needed += [int(rows.shards[number]) for number in rows.shard_no]
        step += 1
    first_needed = list(dict.fromkeys(needed))
    for window in range(plan.window_count):
        shards = plan.shards(window).tolist()
        empty = [shard for shard in shards if not counts[shard]]
        assert access.needed(window) == [shard for shard in first_needed if shard in shards] + empty
    whole = [shard for window in range(plan.window_count) for shard in access.needed(window)]
    wishes = access.wishes(0)
    assert wishes == whole[: len(wishes)]
    assert len(wishes) >= min(len(whole), 16)


def test_shards_that_several_partitions_need_come_first() -> None:
    """Partitions advance together: what the first samples of either need comes before what is needed later."""
    listing, reader = _reader([1] * 12, window_shards=4, parts=2)
    plan, access = reader.epoch_map(Cursor(1)), reader.access_at(listing.as_listed, Cursor(1))
    firsts = {int(plan.samples(part, 0)[0][0]) for part in range(2)}
    assert set(access.needed(0)[:2]) == firsts
    assert sorted(access.needed(0)) == sorted(plan.shards(0).tolist())


def test_shards_of_many_samples_are_wished_for_in_the_order_of_the_epoch() -> None:
    """Their window's first batch needs nearly all of them, and a look at each sample would take long."""
    listing, reader = _reader([30] * 8, window_shards=8)
    plan, access = reader.epoch_map(Cursor(1)), reader.access_at(listing.as_listed, Cursor(1))
    assert access.needed(0) == plan.order.tolist()


def test_uncounted_shards_are_wished_for_in_the_order_of_the_epoch() -> None:
    """Nobody knows yet which of them the first batch needs."""
    listing, reader = _reader([1] * 8, window_shards=8)
    listing.counts.clear()
    plan, access = reader.epoch_map(Cursor(1)), reader.access_at(listing.as_listed, Cursor(1))
    assert access.needed(0) == plan.order.tolist()


def test_a_node_among_many_takes_no_memory_for_the_shards_of_others() -> None:
    """A column of all shards for each rank and epoch would take 4 MB for a million shards."""
    sizes = np.ones(800, np.int64)
    assert (_Lookup(np.arange(99), sizes)._first.size, _Lookup(np.arange(100), sizes)._first.size) == (0, 800)


@pytest.mark.parametrize(
    ("width", "shard_bytes", "readahead_bytes", "count"),
    [
        (4, 1 << 20, 0, 16),
        (4, 1 << 20, 20 << 20, 20),  # as many as fit
        (4, 1 << 20, 1 << 30, 64),
        (4, 128 << 20, 1 << 30, 16),
        (40, 1 << 20, 1 << 30, 80),  # two windows
        (4, 0, 1 << 30, 64),  # of unknown sizes
    ],
)
def test_small_shards_are_wished_for_further_ahead(
    width: int, shard_bytes: int, readahead_bytes: int, count: int
) -> None:
    """Within the share of the cache, as many as one store can send at one time."""
    assert readahead_count(width, shard_bytes, readahead_bytes) == count
    refs = [ObjectRef("s3://b", f"{number:03}", shard_bytes, "e") for number in range(100)]
    listing = Listing.of(refs, 0.0)
    options = ReaderOptions(0, shuffle=True, window_shards=width, batch_size=8, topology=Topology())
    access = Reader((Assignment(np.arange(100)),), options, listing.counts).access_at(listing.as_listed, Cursor(1))
    for window in (0, 1, 100 // width - 1):
        wishes = access.wishes(window, readahead_bytes)
        assert len(set(wishes)) == len(wishes)
        assert count - width <= len(wishes) <= count + width  # at the epoch's end the next one may begin with the same
        assert wishes[:1] == access.needed(window)[:1]


def test_the_order_of_an_epoch_is_the_same_however_it_is_asked_for() -> None:
    """Asking for the next epoch's order in advance, or after the epoch was entered, makes no difference."""
    refs = [ObjectRef("s3://b", f"{number:03}", 10, str(number)) for number in range(20)]
    listing = Listing.of(refs, 0.0)
    options = ReaderOptions(1, shuffle=True, window_shards=2, batch_size=4, topology=Topology())
    reader = Reader(listing.as_listed.shares(open_spec(("s3://b/",), 4).order), options, listing.counts)
    ahead = reader.order_of(3).tolist()
    assert reader.epoch_map(Cursor(3)).order.tolist() == ahead == reader.order_of(3).tolist()
    assert reader.order_of(2).tolist() != ahead
