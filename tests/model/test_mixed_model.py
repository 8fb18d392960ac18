"""Ranks of a mixture against a simulation: plain readers of each source alone, and samples given out one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from feedd.dataset.assignment import Partitioning
from feedd.dataset.listing import DatasetView, Listing
from feedd.errors import BadRequest
from feedd.open_spec import OpenSpec, SourceSpec
from feedd.ordering import mixing, rng
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.mixed_reader import PARTITIONS, MixedPlan, MixedReader, source_seed
from feedd.ordering.mixing import BATCH, BATCH_SAMPLE, MODES, SAMPLE
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.values import Cursor, EpochEnd, ObjectRef, Topology
from tests.budget import budget
from tests.fakes.specs import changed, open_spec
from tests.model.test_mixing_model import one_by_one, shuffled, until_one_ends
from tests.model.test_plan_model import ranks_of

Sample = tuple[int, int, int]
"""Shard (dataset index), ordinal, augmentation seed."""
WINDOW = 2
EPOCHS = 3


@dataclass(frozen=True)
class Mix:
    """Several sources and how they are read.

    Attributes:
        truth: samples of each shard of each source.
        weights: of each source, from each epoch on.
        spec: the rest.
    """

    truth: tuple[tuple[int, ...], ...]
    weights: dict[int, tuple[int, ...]]
    spec: OpenSpec

    def view(self) -> DatasetView:
        """List all sources, one after another, every count known."""
        refs = [
            ObjectRef("s3://b", f"{source}/{shard:03}", count + 1, str(shard))
            for source, counts in enumerate(self.truth)
            for shard, count in enumerate(counts)
        ]
        firsts = tuple(np.cumsum([0, *(len(counts) for counts in self.truth[:-1])]).tolist())
        listing = Listing.of(refs, 0.0, firsts)
        listing.counts.update(enumerate(itertools.chain(*self.truth)))
        return listing.as_listed

    def at(self, topology: Topology) -> OpenSpec:
        """What one rank asks for."""
        sources = tuple(
            SourceSpec((f"s3://b/{source}/",), (), tuple((since, its[source]) for since, its in self.weights.items()))
            for source in range(len(self.truth))
        )
        return changed(self.spec, topology=topology, sources=sources)

    def plan(self, topology: Topology, window: int, view: DatasetView | None = None) -> MixedPlan:
        """Return the plan of a node's ranks; of another view of the same sources, if one is given."""
        spec = self.at(topology)
        return MixedPlan.of(view or self.view(), spec.order, spec.data.sources, window)

    def reader(self, topology: Topology) -> MixedReader:
        """Return a rank's reader, as a session has it."""
        return MixedReader(self.plan(topology, WINDOW))


def samples(rows: BatchRows) -> list[Sample]:
    """Return what a batch holds, in order."""
    shards = rows.shards[rows.shard_no].tolist()
    return list(zip(shards, rows.ordinal.tolist(), rows.seeds.tolist(), strict=True))


def access_at(reader: MixedReader, epoch: int, step: int = 0) -> list[list[Sample]]:
    """Read from a step to the end of its epoch."""
    found = []
    while isinstance(rows := reader.rows(Cursor(epoch, step)), BatchRows):
        found.append(samples(rows))
        step += 1
    assert rows == EpochEnd(epoch, step)
    return found


class Simulation:
    """Partitions that give out samples one by one, each from plain readers of every source."""

    def __init__(self, mix: Mix, topology: Topology) -> None:
        self._mix = mix
        self._spec = spec = mix.at(topology)
        self._parts = spec.order.partitions or topology.node_count
        self._step = spec.order.batch_size * topology.world_size // self._parts
        self._unit = spec.order.batch_size if spec.order.mix in {BATCH, BATCH_SAMPLE} else 1
        self._streams = [
            [self._epochs(source, part) for source in range(len(mix.truth))] for part in range(self._parts)
        ]

    def _share(self, source: int, part: int) -> tuple[DatasetView, Reader]:
        counts = self._mix.truth[source]
        refs = [ObjectRef("s3://b", f"{shard:03}", count + 1, "") for shard, count in enumerate(counts)]
        alone = Listing.of(refs, 0.0)
        alone.counts.update(enumerate(counts))
        (share,) = Partitioning(self._spec.order.sharding, self._parts).shares(
            alone.sizes, alone.counts, self._parts, part
        )
        seed = source_seed(self._spec.order.seed, source)
        options = ReaderOptions(seed, self._spec.order.shuffle, WINDOW, 7, Topology())
        return alone.as_listed, Reader((share,), options, alone.counts)

    def _epochs(self, source: int, part: int) -> itertools.chain[Sample]:
        first = sum(len(counts) for counts in self._mix.truth[:source])
        _, reader = self._share(source, part)

        def epoch(number: int) -> list[Sample]:
            found = []
            step = 0
            while isinstance(rows := reader.rows(Cursor(number, step)), BatchRows):
                found += [(shard + first, ordinal, seed) for shard, ordinal, seed in samples(rows)]
                step += 1
            return found

        return itertools.chain.from_iterable(map(epoch, itertools.count()))

    def held(self) -> list[int]:
        """What the partition with the fewest samples of a source has of it."""
        per_source = []
        for source in range(len(self._mix.truth)):
            readers = [self._share(source, part)[1] for part in range(self._parts)]
            per_source.append(min(sum(len(rows) for rows in _plain(reader)) for reader in readers))
        return per_source

    def lacks_a_batch(self) -> bool:
        """Whether a source would end an epoch before it gave its first batch."""
        weighted = [any(its) for its in zip(*self._mix.weights.values(), strict=True)]
        short = [has and held < self._unit for has, held in zip(weighted, self.held(), strict=True)]
        return not self._spec.order.samples_per_epoch and any(short)

    def epoch(self, number: int) -> list[list[list[Sample]]]:
        """Return, of each step, what each partition gives; to be asked for one epoch after another."""
        weights = list(self._mix.weights[max(since for since in self._mix.weights if since <= number)])
        if self._spec.order.samples_per_epoch:
            units = self._spec.order.samples_per_epoch // (self._step * self._parts) * self._step // self._unit
        else:
            units = until_one_ends(weights, [samples // self._unit for samples in self.held()])
            units -= units % (self._step // self._unit)
        given = []
        for part, streams in enumerate(self._streams):
            sources = one_by_one(weights, units)
            if self._spec.order.mix in {SAMPLE, BATCH_SAMPLE}:
                sources = shuffled(sources, rng.derive(PARTITIONS, self._spec.order.seed, part), number, mixing._BLOCK)
            order = [next(streams[source]) for source in sources for _ in range(self._unit)]
            given.append([order[low : low + self._step] for low in range(0, len(order), self._step)])
        return [list(step) for step in zip(*given, strict=True)]


def _plain(reader: Reader) -> list[list[int]]:
    found, step = [], 0
    while isinstance(rows := reader.rows(Cursor(0, step)), BatchRows):
        found.append(rows.ordinal.tolist())
        step += 1
    return found


@st.composite
def mixes(draw: st.DrawFn) -> tuple[Mix, list[Topology]]:
    """Any small mixture that can be."""
    nodes, ranks = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    mode = draw(st.sampled_from(MODES))
    per_node = 1 if mode in {BATCH, BATCH_SAMPLE} else draw(st.integers(1, 2))
    parts = nodes * per_node
    source_count = draw(st.integers(1, 3))
    weight = st.tuples(*[st.integers(0, 5)] * source_count).filter(any)
    shard = st.integers(1, 5)
    batch_size = draw(st.integers(1, 3)) * per_node
    spec = open_spec(
        urls=("s3://b/",),
        fields=(),
        batch_size=batch_size,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        sharding=draw(st.sampled_from(["key", "size", "sample"])),
        partitions=parts if per_node > 1 else 0,
        mix=mode,
        samples_per_epoch=draw(st.sampled_from([0, 0, 40, 75])),
    )
    truth = tuple(tuple(draw(st.lists(shard, min_size=2 * parts, max_size=10))) for _ in range(source_count))
    weights = {0: draw(weight), 2: draw(weight)} if draw(st.booleans()) else {0: draw(weight)}
    return Mix(truth, weights, spec), ranks_of(nodes, ranks)


@settings(max_examples=budget(150), deadline=None)
@given(made=mixes(), block=st.integers(1, 50))
def test_as_simulated(made: tuple[Mix, list[Topology]], block: int) -> None:
    """Every batch of three epochs on every rank is what the simulation gives out; all ranks have as many steps."""
    mix, topologies = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_BLOCK", block)  # its length is part of the order; short ones show more
        simulation = Simulation(mix, topologies[0])
        nodes = topologies[0].node_count
        given_out = [simulation.epoch(epoch) for epoch in range(EPOCHS)]
        if not all(given_out) or simulation.lacks_a_batch():
            with pytest.raises(BadRequest, match="samples"):
                mix.reader(topologies[0])
            return
        readers = [mix.reader(topology) for topology in topologies]
        for epoch, expected in enumerate(given_out):
            for topology, reader in zip(topologies, readers, strict=True):
                low = topology.local_rank * mix.spec.order.batch_size
                node_steps = [list(itertools.chain(*step[topology.node_rank :: nodes])) for step in expected]
                assert access_at(reader, epoch) == [step[low : low + mix.spec.order.batch_size] for step in node_steps]
                assert reader.steps(epoch) == len(expected)


@settings(max_examples=budget(60), deadline=None)
@given(made=mixes(), epoch=st.integers(0, 4))
def test_restored_at_every_step(made: tuple[Mix, list[Topology]], epoch: int) -> None:
    """A new reader at any step of any epoch gives exactly the tail, knowing nothing but epoch and step."""
    mix, topologies = made
    try:
        whole = access_at(mix.reader(topologies[-1]), epoch)
    except BadRequest:
        reject()  # too few samples for a step
    for step in range(len(whole) + 1):
        assert access_at(mix.reader(topologies[-1]), epoch, step) == whole[step:]


@settings(max_examples=budget(100), deadline=None)
@given(made=mixes(), epoch=st.integers(0, 3))
def test_sources_in_their_own_order(made: tuple[Mix, list[Topology]], epoch: int) -> None:
    """Over the epochs up to one, all ranks together take each sample of a source as often as any other, or once less.

    Partitions go round by themselves: what each holds comes as often as what else it holds, to within one.
    """
    mix, topologies = made
    mix = replace(mix, spec=changed(mix.spec, sharding="key"))
    try:
        readers = [mix.reader(topology) for topology in topologies]
    except BadRequest:
        reject()
    times: dict[tuple[int, int], int] = {}
    for reader, number in itertools.product(readers, range(epoch + 1)):
        for shard, ordinal, _ in itertools.chain(*access_at(reader, number)):
            times[shard, ordinal] = times.get((shard, ordinal), 0) + 1
    view, parts = mix.view(), mix.spec.order.partitions or topologies[0].node_count
    for source, counts in enumerate(mix.truth):
        first = view.listing.firsts[source]
        for part in range(parts):
            share = [
                times.get((first + shard, ordinal), 0)
                for shard in range(part, len(counts), parts)
                for ordinal in range(counts[shard])
            ]
            assert max(share) - min(share) <= 1


@pytest.mark.parametrize("sharding", ["key", "sample"])
@pytest.mark.parametrize("mode", ["stratified", "sample"])
def test_elastic(sharding: str, mode: str) -> None:
    """With 4 partitions and 16 samples a step, 1 to 4 nodes of 1 or 2 ranks take the same samples in every step."""
    draw = np.random.default_rng(7)
    truth = tuple(tuple(draw.integers(3, 30, 12).tolist()) for _ in range(2))
    seen = {}
    for nodes, ranks in itertools.product((1, 2, 4), (1, 2)):
        spec = open_spec(("s3://b/",), 16 // (nodes * ranks), shuffle=True, seed=3, sharding=sharding, mix=mode)
        mix = Mix(truth, {0: (7, 3)}, changed(spec, partitions=4))
        walks = [access_at(mix.reader(topology), 2) for topology in ranks_of(nodes, ranks)]
        seen[nodes, ranks] = [sorted(itertools.chain(*step)) for step in zip(*walks, strict=True)]
    first = seen[1, 1]
    assert len(first) > 4
    assert all(steps == first for steps in seen.values())
