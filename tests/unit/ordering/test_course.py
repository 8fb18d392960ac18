"""What the cache is told of a mixed epoch: which shards, from which step till which, and when they come again."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from feedd.dataset.listing import Listing
from feedd.errors import BadRequest
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.mixed_reader import MixedPlan, MixedReader
from feedd.ordering.mixed_schedule import MixedAccess, ShardSchedule
from feedd.ordering.mixing import BATCH, BATCH_SAMPLE, MODES, SAMPLE, STRATIFIED
from feedd.values import Cursor, Topology
from tests.budget import budget
from tests.fakes.specs import changed, open_spec
from tests.model.test_mixed_model import WINDOW, Mix, mixes
from tests.model.test_plan_model import ranks_of


def _plan(mix: Mix, topology: Topology) -> MixedPlan:
    try:
        return mix.plan(topology, WINDOW)
    except BadRequest:
        reject()


def _read(plan: MixedPlan, epoch: int) -> list[set[int]]:
    """Return the shards that the node's ranks read in each step."""
    share = plan.rank_samples
    return [
        set(itertools.chain(*(plan.take(part, epoch, step * share, (step + 1) * share)[0].tolist() for part in parts)))
        for parts in [range(len(plan.partitions))]
        for step in range(plan.steps(epoch))
    ]


@settings(max_examples=budget(150), deadline=None)
@given(made=mixes(), epoch=st.integers(0, 3))
def test_a_window_names_what_its_steps_read(made: tuple[Mix, list[Topology]], epoch: int) -> None:
    """Every shard a step reads is among those its window needs; in the drawn modes its need has not ended at least."""
    mix, topologies = made
    plan = _plan(mix, topologies[0])
    its = plan.schedule(epoch)
    assert its.begins.tolist() == sorted(its.begins.tolist())
    assert (its.begins <= its.ends).all()
    drawn = mix.spec.order.mix in {SAMPLE, BATCH_SAMPLE}
    for step, shards in enumerate(_read(plan, epoch)):
        window = its.window(step)
        assert its.edges[window] <= step
        assert step < [*its.edges.tolist(), plan.steps(epoch)][window + 1]
        if drawn:
            assert shards <= {shard for shard, end in zip(its.shards.tolist(), its.ends, strict=True) if end >= window}
        else:
            assert shards <= set(its.shards[its.needed(window)].tolist())
    every = [place for window in range(its.edges.shape[0]) for place in its.ending(window).tolist()]
    assert sorted(every) == list(range(its.shards.shape[0]))


@pytest.mark.parametrize("mode", MODES)
def test_no_more_is_needed_than_windows_are_open(mode: str) -> None:
    """With hundreds of windows, what is said to be needed at a time is what two windows of each source hold."""
    spec = open_spec(("s3://b/",), 8, shuffle=True, mix=mode)
    mix = Mix(((40,) * 300, (30,) * 200), {0: (2, 1)}, spec)
    plan = _plan(mix, ranks_of(1, 2)[0])
    its = plan.schedule(1)
    stray = {SAMPLE: 4 * 64 * 3 // 40, BATCH_SAMPLE: 8 * 4 * 64 * 3 // 40}.get(
        mode, 0
    )  # in shards of the lesser source
    widest = max(its.needed(window).shape[0] for window in range(its.edges.shape[0]))
    assert widest <= 2 * 3 * WINDOW + 3 * stray
    assert its.edges.shape[0] > 100


def test_a_small_source_is_needed_all_the_time() -> None:
    """One that goes round ten times in an epoch is named once, from the epoch's begin to its end."""
    spec = open_spec(("s3://b/",), 5, shuffle=True, mix=STRATIFIED)
    plan = _plan(Mix(((50,) * 40, (10, 10)), {0: (10, 1)}, spec), Topology())
    its = plan.schedule(1)
    small = [place for place, shard in enumerate(its.shards.tolist()) if shard >= 40]
    assert sorted(its.shards[small].tolist()) == [40, 41]
    assert its.ends[small].tolist() == [its.edges.shape[0] - 1] * 2
    assert max(its.begins[small]) < its.edges.shape[0] / 5


def _positions(its: ShardSchedule, shard: int) -> list[int]:
    return [place for place, other in enumerate(its.shards.tolist()) if other == shard]


@settings(max_examples=budget(100), deadline=None)
@given(made=mixes(), epoch=st.integers(0, 3), data=st.data())
def test_uses_as_looked_up_one_by_one(made: tuple[Mix, list[Topology]], epoch: int, data: st.DataObject) -> None:
    """Where each shard is due next, from any window on, is its next place in this epoch, the next one, or its end."""
    mix, topologies = made
    plan, view = _plan(mix, topologies[0]), mix.view()
    access = MixedReader(plan).access_at(view, Cursor(epoch))
    its, following = plan.schedule(epoch), plan.schedule(epoch + 1)
    starts = [0, *itertools.accumulate(int(view.listing.sizes[shard]) for shard in its.shards)]
    later = [0, *itertools.accumulate(int(view.listing.sizes[shard]) for shard in following.shards)]

    def due(shard: int, window: int) -> float:
        left = [starts[place] for place in _positions(its, shard) if its.ends[place] >= window]
        coming = [starts[-1] + later[place] for place in _positions(following, shard)]
        return [*left, *coming, starts[-1] + later[-1]][0]

    window = data.draw(st.integers(0, its.edges.shape[0] - 1))
    assert access.position(window) == starts[its.position(window)]
    refs = [view.refs[shard] for shard in plan.assigned.tolist()]
    uses, later_uses = (access.next_uses(refs, window + more).tolist() for more in (0, 1))
    assert uses == [due(shard, window) for shard in plan.assigned.tolist()]
    changed_uses = {shard for shard in plan.assigned.tolist() if due(shard, window) != due(shard, window + 1)}
    assert changed_uses <= set(access.ending(window)), "the cache is told of all shards whose next use changes"
    assert later_uses == [due(shard, window + 1) for shard in plan.assigned.tolist()]
    strange = replace(refs[0], etag="another version")
    others = [view.refs[shard] for shard in set(range(len(view.refs))) - set(plan.assigned.tolist())]
    assert access.next_uses([strange, *others], window).tolist() == [math.inf] * (1 + len(others))
    wishes = access.wishes(window)
    assert len(set(wishes)) == len(wishes)
    assert set(its.shards[its.needed(window)].tolist()) <= set(wishes)


@pytest.mark.parametrize("window", [0, 3, 7])
def test_the_same_data_twice_is_due_when_either_source_needs_it(window: int) -> None:
    """Two sources of the same objects, each in its own order: an object is named once, due where it comes first."""
    spec = open_spec(("s3://b/",), 4, shuffle=True, mix=STRATIFIED)
    mix = Mix(((8,) * 12, (8,) * 12), {0: (2, 1)}, spec)
    refs = tuple(mix.view().refs[:12])
    listing = Listing.of(refs * 2, 0.0, (0, 12))
    listing.counts.update(dict.fromkeys(range(24), 8))
    plan = mix.plan(Topology(), WINDOW, listing.as_listed)
    its = plan.schedule(0)
    uses = MixedReader(plan).access_at(listing.as_listed, Cursor(0)).next_uses(refs, window).tolist()
    assert plan.assigned.tolist() == list(range(24))
    starts = [0, *itertools.accumulate(int(listing.sizes[shard]) for shard in its.shards)]
    for ref, at in zip(refs, uses, strict=True):
        left = [place for place in _positions(its, refs.index(ref)) if its.ends[place] >= window]
        if left:
            assert at == starts[left[0]]
    assert max(len(_positions(its, shard)) for shard in range(12)) == 2


def test_walks_are_told_apart() -> None:
    """The same mixture has one key on all ranks of a node; another seed, epoch or batch size has another."""
    spec = open_spec(("s3://b/",), 4, shuffle=True, mix=BATCH)
    mix = Mix(((9,) * 8, (7,) * 8), {0: (1, 1)}, spec)
    view = mix.view()

    def key(topology: Topology, epoch: int = 0, **changes: int) -> object:
        other = Mix(mix.truth, mix.weights, changed(spec, **changes))
        return MixedReader(_plan(other, topology)).access_at(view, Cursor(epoch)).key

    one, two = ranks_of(1, 2)
    assert key(one) == key(two)
    assert len({key(one), key(one, 1), key(one, seed=1), key(one, batch_size=2)}) == 4


def test_orders_begin_with_what_is_needed_first() -> None:
    """What opening looks at first, of each source, is a shard of the epoch's first step; all of the node's follow."""
    spec = open_spec(("s3://b/",), 12, shuffle=True, mix=STRATIFIED)
    mix = Mix(((9,) * 8, (7,) * 30), {0: (1, 1)}, spec)
    reader = mix.reader(Topology())
    for epoch in range(4):
        orders = reader.orders(Cursor(epoch))
        assert [sorted(order) for order in orders] == [list(range(8)), list(range(8, 38))]
        rows = reader.rows(Cursor(epoch, 0))
        assert isinstance(rows, BatchRows)
        for order in orders:
            assert set(order[:WINDOW]) & set(rows.shards.tolist())
    assert isinstance(reader.access_at(mix.view(), Cursor(0)), MixedAccess)
