"""Samples put together by length: still nothing lost, nothing twice, from any step on, on however many nodes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.dataset.step_counts import Uneven
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.buckets import NeedLengths, by_length, lengths_of
from feedd.ordering.epoch import NeedCounts
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.shard_index import ShardIndex
from feedd.values import Cursor, EpochEnd, Topology
from tests.budget import budget
from tests.fakes.specs import changed, open_spec
from tests.model.test_plan_model import Run, Sample, ids, ranks_of, runs

if TYPE_CHECKING:
    from feedd.dataset.listing import DatasetView


@dataclass(frozen=True)
class Bucketed(Run):
    """A run whose samples have lengths."""

    @classmethod
    def of(cls, run: Run) -> Bucketed:
        """Give a run's samples lengths."""
        spec = changed(run.spec, shuffle=True, bucket_by="txt")
        return cls(run.truth, spec, run.window, run.uneven, run.counted)

    def lengths(self, shard: int) -> list[int]:
        """Return the lengths of a shard's samples; -1 of one that has none."""
        found: list[int] = np.random.default_rng(shard).integers(-1, 40, self.truth[shard]).tolist()
        return found

    def index(self, shard: int) -> ShardIndex:
        """Return a shard's index, as a worker makes it."""
        sizes = np.array([self.lengths(shard)], np.int64)
        return ShardIndex(("txt",), np.zeros_like(sizes), sizes, b"", np.zeros(self.truth[shard], np.int64))

    def reader(self, topology: Topology, view: DatasetView) -> Reader:
        """Return a rank's reader, as a session has it."""
        spec = changed(self.spec, topology=topology)
        wrap = self.uneven in {Uneven.PAD, Uneven.REPEAT}
        steps = view.steps(spec.order, self.uneven)
        options = ReaderOptions(
            spec.order.seed,
            spec.order.shuffle,
            self.window,
            spec.order.batch_size,
            topology,
            steps,
            wrap,
            bucket_by=("txt",),
        )
        return Reader(view.shares(spec.order), options, view.counts)

    def access_at(self, topology: Topology, at: Cursor) -> list[BatchRows]:
        """Read from ``at`` to the end, step by step, learning counts and lengths only when asked to."""
        view = self.view()
        reader = self.reader(topology, view)
        found: list[BatchRows] = []
        while isinstance(rows := self.ask(reader, view, at), BatchRows):
            found.append(rows)
            at = Cursor(at.epoch, at.step + 1, rows.cursor.anchors)
        assert rows.steps == at.step
        return found

    def ask(self, reader: Reader, view: DatasetView, at: Cursor) -> BatchRows | EpochEnd:
        """Return what a reader says of one step, told what it wants to know."""
        while isinstance(rows := reader.rows(at), NeedCounts):
            view.counts.update({shard: self.truth[shard] for shard in rows.shards})
            if isinstance(rows, NeedLengths):
                rows.learn([self.index(shard) for shard in rows.shards])
        return rows


@settings(max_examples=budget(100), deadline=None)
@given(made=runs((Uneven.ALLOW,)), epoch=st.integers(0, 2))
def test_exactly_once(made: tuple[Run, list[Topology]], epoch: int) -> None:
    """Over all ranks each sample comes once, whatever its length."""
    run, topologies = Bucketed.of(made[0]), made[1]
    seen = [
        sample for topology in topologies for rows in run.access_at(topology, Cursor(epoch)) for sample in ids(rows)
    ]
    assert sorted(seen) == [(shard, i) for shard, count in enumerate(run.truth) for i in range(count)]


@settings(max_examples=budget(100), deadline=None)
@given(made=runs((Uneven.ALLOW, Uneven.JOIN, Uneven.DROP)), data=st.data())
def test_restored_at_every_step(made: tuple[Run, list[Topology]], data: st.DataObject) -> None:
    """From the state after any step a new reader gives exactly the tail, knowing nothing of what was before."""
    run, topologies = Bucketed.of(made[0]), made[1]
    topology = data.draw(st.sampled_from(topologies))
    whole = run.access_at(topology, Cursor(1))
    for step, rows in enumerate(whole):
        for anchors in (rows.cursor.anchors, ()):
            tail = run.access_at(topology, Cursor(1, step, anchors))
            assert [ids(one) for one in tail] == [ids(one) for one in whole[step:]]


@settings(max_examples=budget(100), deadline=None)
@given(made=runs((Uneven.ALLOW,)), data=st.data())
def test_steps_in_any_order(made: tuple[Run, list[Topology]], data: st.DataObject) -> None:
    """One reader asked for its steps in any order, other epochs in between, says what it says in order."""
    run, topologies = Bucketed.of(made[0]), made[1]
    topology = data.draw(st.sampled_from(topologies))
    whole = {epoch: run.access_at(topology, Cursor(epoch)) for epoch in (0, 1)}
    view = run.view()
    reader = run.reader(topology, view)
    asked = [(epoch, step) for epoch, access in whole.items() for step in range(len(access))]
    for epoch, step in data.draw(st.permutations(asked)):
        told = whole[epoch][step].cursor.anchors if data.draw(st.booleans()) else ()
        rows = run.ask(reader, view, Cursor(epoch, step, told))
        assert isinstance(rows, BatchRows)
        assert ids(rows) == ids(whole[epoch][step])


@pytest.mark.parametrize("sharding", ["key", "size", "sample"])
def test_elastic(sharding: str) -> None:
    """With 8 partitions and 32 samples a step, 1 to 8 nodes of 1 to 4 ranks take the same samples in every step."""
    truth = tuple(np.random.default_rng(7).integers(3, 30, 40).tolist())
    seen: dict[tuple[int, int], list[list[Sample]]] = {}
    for nodes, ranks in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        spec = open_spec(("s3://b/",), 32 // (nodes * ranks), shuffle=True, seed=3, sharding=sharding, partitions=8)
        run = Bucketed.of(Run(truth, spec, 3, Uneven.ALLOW, counted=sharding == "sample"))
        walks = [run.access_at(topology, Cursor(2)) for topology in ranks_of(nodes, ranks)]
        steps = itertools.zip_longest(*walks)
        seen[nodes, ranks] = [sorted(itertools.chain(*(ids(rows) for rows in step if rows))) for step in steps]
    assert len(seen[1, 1]) > 10
    assert all(steps == seen[1, 1] for steps in seen.values())


def test_batches_hold_similar_lengths() -> None:
    """Steps that lie in one window are runs of the sorted lengths, and come in no order of length; seeds matter."""
    run = Bucketed.of(Run((50,) * 8, open_spec(("s3://b/",), 10, seed=1), 4, Uneven.ALLOW, counted=False))
    access = run.access_at(Topology(), Cursor(1))
    steps = [[run.lengths(shard)[ordinal] for shard, ordinal in ids(rows)] for rows in access]
    for window in (steps[:20], steps[20:]):
        spans = sorted((min(step), max(step)) for step in window)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        means = [sum(step) for step in window]
        assert means not in (sorted(means), sorted(means, reverse=True))
    other = replace(run, spec=changed(run.spec, seed=2)).access_at(Topology(), Cursor(1))
    assert [ids(rows) for rows in access] != [ids(rows) for rows in other]


@given(
    lengths=st.lists(st.integers(-1, 20), max_size=40),
    start=st.integers(0, 50),
    step=st.integers(1, 9),
    key=st.integers(0),
)
def test_order_by_length(lengths: list[int], start: int, step: int, key: int) -> None:
    """A permutation, cut at multiples of a step, each cut a run of the sorted lengths."""
    order = by_length(np.array(lengths, np.int64), start, step, key).tolist()
    assert sorted(order) == list(range(len(lengths)))
    cuts: dict[int, list[int]] = {}
    for place, sample in enumerate(order):
        cuts.setdefault((start + place) // step, []).append(lengths[sample])
    spans = sorted((min(cut), max(cut)) for cut in cuts.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_lengths_of_alternatives() -> None:
    """The first of several names that a sample has decides; none: it has no length."""
    sizes = np.array([[3, -1, -1], [9, 8, -1]], np.int64)
    index = ShardIndex(("txt", "text"), np.zeros_like(sizes), sizes, b"", np.zeros(3, np.int64))
    assert lengths_of(index, ("txt", "text")).tolist() == [3, 8, -1]
    assert lengths_of(index, ("other",)).tolist() == [-1, -1, -1]
