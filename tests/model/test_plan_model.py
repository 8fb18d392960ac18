"""The plan as a whole: nothing lost, nothing twice, from any step on, on however many nodes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from feedd.dataset.listing import Listing
from feedd.dataset.step_counts import Uneven
from feedd.errors import BadRequest, Unsupported
from feedd.ordering.epoch import NeedCounts
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, EpochEnd, ObjectRef, Topology
from tests.budget import budget
from tests.fakes.specs import changed, open_spec

if TYPE_CHECKING:
    from feedd.dataset.listing import DatasetView
    from feedd.open_spec import OpenSpec
    from feedd.ordering.batch_plan import BatchRows

Sample = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """A dataset and how it is read.

    Attributes:
        truth: samples of each shard.
        counted: known from the start.
    """

    truth: tuple[int, ...]
    spec: OpenSpec
    window: int
    uneven: Uneven
    counted: bool

    def view(self) -> DatasetView:
        """List the shards anew; bytes go with samples."""
        refs = [ObjectRef("s3://b", f"{i:03}", count + 1, str(i)) for i, count in enumerate(self.truth)]
        listing = Listing.of(refs, 0.0)
        if self.counted:
            listing.counts.update(enumerate(self.truth))
        return listing.as_listed

    def reader(self, topology: Topology, view: DatasetView) -> Reader:
        """Return a rank's reader, as a session has it."""
        spec = changed(self.spec, topology=topology)
        wrap = self.uneven in {Uneven.PAD, Uneven.REPEAT}
        steps = view.steps(spec.order, self.uneven)
        options = ReaderOptions(
            spec.order.seed, spec.order.shuffle, self.window, spec.order.batch_size, topology, steps, wrap
        )
        return Reader(view.shares(spec.order), options, view.counts)

    def access_at(self, topology: Topology, at: Cursor) -> list[BatchRows]:
        """Read from ``at`` to the end of its epoch with a reader of its own, that learns counts when asked to."""
        view = self.view()
        reader = self.reader(topology, view)
        found: list[BatchRows] = []
        while True:
            rows = reader.rows(at)
            if isinstance(rows, NeedCounts):
                view.counts.update({shard: self.truth[shard] for shard in rows.shards})
            elif isinstance(rows, EpochEnd):
                assert rows.steps == at.step
                return found
            else:
                found.append(rows)
                at = Cursor(at.epoch, at.step + 1, rows.cursor.anchors)


def ids(rows: BatchRows) -> list[Sample]:
    """Return the samples of a batch, in order."""
    return list(zip(rows.shards[rows.shard_no].tolist(), rows.ordinal.tolist(), strict=True))


def samples_of(run: Run, topology: Topology) -> list[int]:
    """Return the samples of every partition, added up one by one."""
    nodes, view = topology.node_count, run.view()
    shares = [
        share
        for node in range(nodes)
        for share in view.shares(replace(run.spec.order, topology=replace(topology, node_rank=node)))
    ]
    found = [share.counts(dict(enumerate(run.truth))) for share in shares]
    return [int(counts.sum()) for counts in found if counts is not None]


def ranks_of(nodes: int, ranks: int) -> list[Topology]:
    """Return every rank's topology."""
    return [
        Topology(nodes * ranks, node * ranks + rank, ranks, rank, nodes, node)
        for node, rank in itertools.product(range(nodes), range(ranks))
    ]


@st.composite
def runs(draw: st.DrawFn, uneven: tuple[Uneven, ...]) -> tuple[Run, list[Topology]]:
    """Any small run that can be."""
    nodes, ranks, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    policy = draw(st.sampled_from(uneven))
    sharding = draw(st.sampled_from(["key", "size", "sample"]))
    batch_size = draw(st.integers(1, 3)) * per_node
    counted = sharding == "sample" or policy not in {Uneven.ALLOW, Uneven.JOIN} or draw(st.booleans())
    spec = open_spec(
        urls=("s3://b/",),
        fields=(),
        batch_size=batch_size,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        sharding=sharding,
        partitions=nodes * per_node if per_node > 1 else 0,
    )
    truth = tuple(draw(st.lists(st.integers(0, 9), max_size=14)))
    return Run(truth, spec, draw(st.integers(1, 4)), policy, counted), ranks_of(nodes, ranks)


@settings(max_examples=budget(150), deadline=None)
@given(made=runs((Uneven.ALLOW,)), epoch=st.integers(0, 2))
def test_exactly_once(made: tuple[Run, list[Topology]], epoch: int) -> None:
    """Over all ranks each sample comes once, whatever the split, counted or not."""
    run, topologies = made
    seen = [
        sample for topology in topologies for rows in run.access_at(topology, Cursor(epoch)) for sample in ids(rows)
    ]
    assert sorted(seen) == [(shard, i) for shard, count in enumerate(run.truth) for i in range(count)]


@settings(max_examples=budget(150), deadline=None)
@given(made=runs((Uneven.DROP,)), epoch=st.integers(0, 2), fewer=st.integers(0, 3))
def test_what_is_left_out_is_told(made: tuple[Run, list[Topology]], epoch: int, fewer: int) -> None:
    """Each rank's figure is exactly what it would have got besides, had every rank ended with its samples."""
    run, topologies = made
    free = replace(run, uneven=Uneven.ALLOW, spec=changed(run.spec, steps=0))
    steps = run.view().steps(replace(run.spec.order, topology=topologies[0]), Uneven.DROP)
    assert steps is not None
    if steps > fewer:  # with fewer than there could be, as a user may ask for
        run = replace(run, spec=changed(run.spec, steps=steps - fewer))
    for topology in topologies:
        got, could = (sum(len(rows.ordinal) for rows in one.access_at(topology, Cursor(epoch))) for one in (run, free))
        assert run.reader(topology, run.view()).left_out() == could - got
        assert free.reader(topology, free.view()).left_out() == 0


@settings(max_examples=budget(100), deadline=None)
@given(made=runs(tuple(Uneven)[:5]), data=st.data())
def test_restored_at_every_step(made: tuple[Run, list[Topology]], data: st.DataObject) -> None:
    """From the state after any step a new reader gives exactly the tail; across the epoch's end the next epoch."""
    run, topologies = made
    topology = data.draw(st.sampled_from(topologies))
    try:
        whole = run.access_at(topology, Cursor(1))
    except BadRequest:
        reject()
    for step, rows in enumerate(whole):
        for anchors in (rows.cursor.anchors, ()):
            tail = run.access_at(topology, Cursor(1, step, anchors))
            assert [ids(one) for one in tail] == [ids(one) for one in whole[step:]]
            assert [one.seeds.tolist() for one in tail] == [one.seeds.tolist() for one in whole[step:]]


@settings(max_examples=budget(150), deadline=None)
@given(made=runs((Uneven.DROP, Uneven.PAD, Uneven.REPEAT)))
def test_equal_steps(made: tuple[Run, list[Topology]]) -> None:
    """All ranks have the same number of full batches: dropping loses little, filling up says what is again."""
    run, topologies = made
    if run.uneven is not Uneven.DROP and 0 in samples_of(run, topologies[0]) and any(run.truth):
        with pytest.raises(BadRequest, match="partitions"):
            run.access_at(topologies[0], Cursor(0))
        return
    walks = [run.access_at(topology, Cursor(0)) for topology in topologies]
    assert len({len(access) for access in walks}) == 1
    assert all(len(rows.ordinal) == run.spec.order.batch_size for access in walks for rows in access)
    came = [sample for access in walks for rows in access for sample in ids(rows)]
    again = [
        bool(flag)
        for access in walks
        for rows in access
        for flag in (rows.again if rows.again is not None else np.zeros(len(rows.ordinal), bool))
    ]
    every = {(shard, i) for shard, count in enumerate(run.truth) for i in range(count)}
    if run.uneven is Uneven.DROP:
        assert max(Counter(came).values(), default=0) <= 1
        assert not any(again)
        if run.spec.order.sharding == "sample":  # equal to within one sample: less than a step of all, and one of each
            partition_count = len(samples_of(run, topologies[0]))
            assert len(every) - len(came) < run.spec.order.batch_size * len(topologies) + partition_count
    else:
        first = [sample for sample, flag in zip(came, again, strict=True) if not flag]
        assert sorted(first) == sorted(every)
        assert set(came) <= every


@pytest.mark.parametrize("sharding", ["key", "size", "sample"])
@pytest.mark.parametrize("uneven", [Uneven.ALLOW, Uneven.DROP, Uneven.PAD])
def test_elastic(sharding: str, uneven: Uneven) -> None:
    """With 8 partitions and 32 samples a step, 1 to 8 nodes of 1 to 4 ranks take the same samples in every step."""
    draw = np.random.default_rng(7)
    truth = tuple(draw.integers(3, 30, 40).tolist())
    seen: dict[tuple[int, int], list[list[Sample]]] = {}
    for nodes, ranks in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        spec = open_spec(("s3://b/",), 32 // (nodes * ranks), shuffle=True, seed=3, sharding=sharding, partitions=8)
        run = Run(truth, spec, 3, uneven, counted=sharding == "sample" or uneven is not Uneven.ALLOW)
        walks = [run.access_at(topology, Cursor(2)) for topology in ranks_of(nodes, ranks)]
        steps = itertools.zip_longest(*walks)
        seen[nodes, ranks] = [sorted(itertools.chain(*(ids(rows) for rows in step if rows))) for step in steps]
    first = seen[1, 1]
    assert len(first) > 10
    assert all(steps == first for steps in seen.values())


def test_resumed_elsewhere() -> None:
    """A run stopped on 2 nodes of 2 ranks goes on on 4 nodes of 1 rank: together they took every sample once."""
    truth = tuple(range(5, 45))
    spec = open_spec(("s3://b/",), 4, shuffle=True, partitions=4)
    run = Run(truth, spec, 2, Uneven.ALLOW, counted=False)
    seen = [s for topology in ranks_of(2, 2) for rows in run.access_at(topology, Cursor(0))[:9] for s in ids(rows)]
    seen += [s for topology in ranks_of(4, 1) for rows in run.access_at(topology, Cursor(0, 9)) for s in ids(rows)]
    assert sorted(seen) == [(shard, i) for shard, count in enumerate(truth) for i in range(count)]


def test_fingerprint_tells_what_matters() -> None:
    """The same samples in every step have the same fingerprint, on however many nodes; others have others."""
    run = Run((5, 5, 5, 5), open_spec(("s3://b/",), 8, partitions=4), 2, Uneven.ALLOW, counted=True)
    view = run.view()

    def mark(batch_size: int, topology: Topology, partitions: int = 4, seed: int = 0) -> bytes:
        spec = changed(run.spec, batch_size=batch_size, topology=topology, partitions=partitions, seed=seed)
        return view.listing.fingerprint(spec.order, (), 2)

    same = {mark(8, Topology()), mark(4, ranks_of(2, 1)[0]), mark(2, ranks_of(2, 2)[3]), mark(2, ranks_of(4, 1)[2])}
    assert len(same) == 1
    others = [mark(4, Topology()), mark(8, Topology(), partitions=2), mark(8, Topology(), seed=1)]
    assert len(same | set(others)) == 4


def test_what_cannot_be_planned_is_refused() -> None:
    """Equal steps without counts, partitions that nodes cannot share, and batches they cannot fill say what to do."""
    run = Run((5, 0, 5), open_spec(("s3://b/",), 4, partitions=3), 2, Uneven.DROP, counted=False)
    with pytest.raises(Unsupported, match="sample counts"):
        run.reader(Topology(), run.view())
    with pytest.raises(BadRequest, match="multiple of the 2 nodes"):
        replace(run, uneven=Uneven.ALLOW).reader(ranks_of(2, 1)[0], run.view())
    counted = replace(run, counted=True, uneven=Uneven.PAD, spec=changed(run.spec, batch_size=3))
    with pytest.raises(BadRequest, match="none in 1 of them"):
        counted.reader(Topology(), counted.view())
    with pytest.raises(BadRequest, match="multiple of its 3 partitions"):
        replace(run, uneven=Uneven.ALLOW).reader(Topology(), run.view())
    sampled = replace(run, uneven=Uneven.ALLOW, spec=changed(run.spec, batch_size=3, sharding="sample"))
    with pytest.raises(BadRequest, match="sharding='sample'"):
        sampled.reader(Topology(), sampled.view())


def test_steps_given_repeat_what_is_there() -> None:
    """With steps= a rank without known counts has that many, and begins again where its samples end."""
    run = Run((3, 4), open_spec(("s3://b/",), 2, steps=9), 2, Uneven.REPEAT, counted=False)
    access = run.access_at(Topology(), Cursor(0))
    came = [sample for rows in access for sample in ids(rows)]
    assert len(access) == 9
    assert came[:7] == came[7:14]
    assert came[14:] == came[:4]
