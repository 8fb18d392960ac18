"""Several datasets mixed into one, as one rank reads them.

Each partition has its own mixture over its share of every source. As without mixing, it gives an equal part of each
step to its node. All partitions' mixtures have the same weights and end their epochs by the smallest share of each
source. So all ranks have the same number of whole steps.

No sample is dropped for that. A mixed epoch is only a unit of counting, and each source continues in the next mixed
epoch where it stood. A source that ends begins its own next epoch, on each partition separately, because shares differ
by a shard or so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from feedd.dataset.fingerprint import recipe_facts
from feedd.dataset.listing import growing_windows
from feedd.dataset.sharding import REPLICATED, SAMPLE
from feedd.dataset.step_counts import partition_samples
from feedd.errors import BadRequest
from feedd.ordering import rng
from feedd.ordering.batch_plan import RunPlan
from feedd.ordering.epoch import EpochOptions
from feedd.ordering.mixed_schedule import MixedAccess, ShardSchedule, schedule
from feedd.ordering.mixing import BATCH, BATCH_SAMPLE, MODES, MixOptions, Mixture
from feedd.ordering.rank_reader import Reader
from feedd.ordering.repeating_source import RepeatingSource
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.dataset.assignment import Partitioning
    from feedd.dataset.listing import DatasetView
    from feedd.open_spec import OrderSpec, SourceSpec
    from feedd.ordering.batch_plan import BatchRows
    from feedd.values import FieldRecipe, Topology

# Domains in addition to ``mixing.MIX`` and those of ``rng``: part of the order, never renumber.
SOURCES = 17
PARTITIONS = 18

_ROUNDS_MAX = 1_000  # each round has its own order, which takes about 100 microseconds
_COURSES_KEPT = 3  # of this epoch, of the next epoch, and of an epoch that drains


def source_seed(seed: int, source: int) -> int:
    """Return the seed of a source's own epochs, so that two sources with the same data are shuffled differently."""
    return rng.derive(SOURCES, seed, source)


def weights_of(sources: Sequence[SourceSpec]) -> dict[int, tuple[float, ...]]:
    """Return the weights of all sources, by each epoch at which a weight changes."""
    since = sorted({epoch for source in sources for epoch, _ in source.weights})
    return {
        epoch: tuple([weight for start, weight in source.weights if start <= epoch][-1] for source in sources)
        for epoch in since
    }


def mix_facts(
    order: OrderSpec, sources: Sequence[SourceSpec], recipes: Sequence[Sequence[FieldRecipe]]
) -> dict[str, object]:
    """Return the facts of a mixture that decide which samples a step holds, for the fingerprint.

    Raises:
        BadRequest: weights or a mode that cannot be served.
    """
    # Any end will do, but there must be one.
    options = MixOptions(0, order.mix, order.batch_size, samples_per_epoch=order.batch_size)
    whole = Mixture(weights_of(sources), options)
    return {
        "mode": order.mix,
        "batch": order.batch_size if order.mix in {BATCH, BATCH_SAMPLE} else 0,
        "weights": [[epoch, list(parts)] for epoch, parts in whole.ratios],
        "samples": _epoch_samples(order) or 0,
        "fields": [recipe_facts(one) for one in recipes],
    }


@dataclass(frozen=True, eq=False)
class MixedPlan:
    """The plan of a node's ranks. Shared by readers; not thread-safe.

    Attributes:
        order: what the request says about order and steps.
        partitions: for each partition of the node, its mixture and its streams of the sources.
        rank_samples: samples that each partition gives to a step.
        twins: see ``Listing``.
    """

    order: OrderSpec
    partitions: tuple[tuple[Mixture, tuple[RepeatingSource, ...]], ...]
    rank_samples: int
    twins: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, view: DatasetView, order: OrderSpec, sources: Sequence[SourceSpec], window_shards: int) -> MixedPlan:
        """Plan a mixture; takes microseconds per shard.

        Raises:
            BadRequest: sample counts are unknown, or the request does not fit the data.
        """
        topology, cut = order.topology, view.listing.partitioning(order)
        _check(order, cut)
        counts = [_counts(view, sources[source].urls, source) for source in range(len(view.listing.firsts))]
        sizes = [view.listing.sizes[_slice(view, source)] for source in range(len(view.listing.firsts))]
        held = [partition_samples(cut, size, count) for size, count in zip(sizes, counts, strict=True)]
        mixture = _mixture(order, sources, cut, [int(samples.min()) for samples in held])
        nodes, node = topology.node_count, topology.node_rank
        streams: list[list[RepeatingSource]] = []
        for source, first in enumerate(view.listing.firsts):
            known = dict(enumerate(counts[source].tolist())) if cut.how == SAMPLE else {}
            seed = source_seed(order.seed, source)
            window = window_shards, order.window_bytes, growing_windows(view.listing, order)
            options = EpochOptions(0, seed, order.shuffle, *window)
            shares = cut.shares(sizes[source], known, nodes, node)
            streams.append([RepeatingSource(share, first, counts[source], options) for share in shares])
        numbers = range(node, cut.partition_count, nodes)
        drawn = [rng.derive(PARTITIONS, order.seed, 0 if cut.how == REPLICATED else number) for number in numbers]
        partitions = tuple(
            (mixture.with_seed(seed), its) for seed, its in zip(drawn, zip(*streams, strict=True), strict=True)
        )
        return cls(order, partitions, _step_samples(order) // cut.partition_count, view.twins)

    @cached_property
    def assigned(self) -> NDArray[np.int64]:
        """The node's shards (dataset indices), ascending, each once."""
        return np.unique(np.concatenate([stream.shards for _, streams in self.partitions for stream in streams]))

    @cached_property
    def objects(self) -> NDArray[np.int64]:
        """The node's shards, ascending; of shards that are the same object, only the first."""
        return self.assigned if self.twins is None else np.unique(self.twins[self.assigned])

    @cached_property
    def _courses(self) -> dict[int, ShardSchedule]:
        return {}

    def steps(self, epoch: int) -> int:
        """Return the steps of every rank in a mixed epoch.

        Raises:
            BadRequest: the epoch's number is too large.
        """
        samples = self.partitions[0][0].epoch_samples(epoch)
        assert samples is not None, "sizes of sources are known"
        return samples // self.rank_samples

    def schedule(self, epoch: int) -> ShardSchedule:
        """Return when each shard is needed in a mixed epoch; shards that are the same object count as one."""
        known = self._courses.get(epoch)
        if known is None:
            known = schedule(self.partitions, epoch, self.rank_samples)
            if self.twins is not None:
                known = replace(known, shards=self.twins[known.shards])
            self._courses[epoch] = known
            while len(self._courses) > _COURSES_KEPT:
                del self._courses[next(iter(self._courses))]
        return known

    def take(
        self, partition: int, epoch: int, low: int, high: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """Return (shard, ordinal, augmentation seed) of samples ``[low, high)`` of a partition's mixed epoch."""
        mixture, streams = self.partitions[partition]
        source, position = mixture.rows(epoch, low, high - low)
        shard, ordinal = np.empty_like(position), np.empty_like(position)
        seed = np.empty(position.shape, dtype=np.uint64)
        for number in np.unique(source).tolist():
            here = np.flatnonzero(source == number)
            first = int(position[here[0]])
            shard[here], ordinal[here], seed[here] = streams[number].take(first, first + here.shape[0])
        return shard, ordinal, seed


class MixedReader:
    """Plans one rank's batches over its node's partitions of several sources. Synchronous; owns no resource."""

    def __init__(self, plan: MixedPlan) -> None:
        self._plan = plan

    @property
    def assigned(self) -> NDArray[np.int64]:
        """The node's shards (dataset indices), ascending, each once."""
        return self._plan.assigned

    def steps(self, epoch: int) -> int:
        """Return the rank's steps of an epoch.

        Raises:
            BadRequest: the epoch's number is too large.
        """
        return self._plan.steps(epoch)

    def left_out(self) -> int:
        """Return 0, because samples after the last step come in the next epoch."""
        return 0

    def orders(self, at: Cursor) -> list[list[int]]:
        """Return each source's shards (dataset indices) of the node, the first needed first."""
        starts = [mixture.starts(at.epoch).tolist() for mixture, _ in self._plan.partitions]
        by_source = zip(*(streams for _, streams in self._plan.partitions), strict=True)
        return [
            [
                shard
                for stream, start in zip(streams, starts, strict=True)
                for shard in stream.order(start[source]).tolist()
            ]
            for source, streams in enumerate(by_source)
        ]

    def window(self, at: Cursor) -> int:
        """Return the window of the epoch's schedule at a cursor."""
        return self._plan.schedule(at.epoch).window(at.step)

    def access_at(self, view: DatasetView, at: Cursor) -> MixedAccess:
        """Return the cursor's epoch as the cache sees it."""
        plan = self._plan
        return MixedAccess(view, at.epoch, plan.schedule(at.epoch), lambda: plan.schedule(at.epoch + 1), plan.objects)

    def rows(self, at: Cursor) -> BatchRows | EpochEnd:
        """Return the batch at ``at``, or the end of the epoch. Any step is found directly; anchors do not matter.

        Raises:
            BadRequest: the epoch's number is too large.
        """
        found = self.draw(at)
        return found.rows() if isinstance(found, RunPlan) else found

    def draw(self, at: Cursor, count: int = 1, stride: int = 1) -> RunPlan | EpochEnd:  # noqa: ARG002 - as ``Reader``
        """Return the same as ``rows``, but not grouped by shard. Batches of a mixture are drawn one by one.

        Raises:
            BadRequest: the epoch's number is too large.
        """
        plan = self._plan
        steps = plan.steps(at.epoch)
        if at.step >= steps:
            return EpochEnd(at.epoch, steps)
        per_step, batch_size = plan.rank_samples, plan.order.batch_size
        low = plan.order.topology.local_rank * batch_size
        parts = []
        for number in range(low // per_step, -(-(low + batch_size) // per_step)):
            begin, end = max(low - number * per_step, 0), min(low + batch_size - number * per_step, per_step)
            before = at.step * per_step
            parts.append(plan.take(number, at.epoch, before + begin, before + end))
        shard, ordinal, seed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        window = self.window(at)
        return RunPlan(Cursor(at.epoch, at.step), shard, ordinal, lambda: seed, window, window)

    def next_order(self) -> None:
        """Do nothing, because the streams sort their own windows."""


def _step_samples(order: OrderSpec) -> int:
    """Return the samples of a step of all ranks."""
    return order.batch_size * order.topology.world_size


def _epoch_samples(order: OrderSpec) -> int | None:
    """Return the samples of a mixed epoch of all ranks, whole steps; None: until the first source ends."""
    if order.steps:
        return order.steps * _step_samples(order)
    if not order.samples_per_epoch:
        return None
    steps = order.samples_per_epoch // _step_samples(order)
    if not steps:
        raise _bad(
            f"samples_per_epoch to hold a step of {_step_samples(order)} samples of all ranks",
            order.samples_per_epoch,
            "raise samples_per_epoch",
        )
    return steps * _step_samples(order)


def _check(order: OrderSpec, cut: Partitioning) -> None:
    topology: Topology = order.topology
    if order.mix not in MODES:
        raise _bad(f"mix to be one of {', '.join(MODES)}", repr(order.mix), "choose a listed mode")
    if topology.world_size != topology.node_count * topology.local_world_size:
        raise _bad(
            "the same number of ranks on all nodes to mix datasets",
            f"{topology.world_size} ranks on {topology.node_count} nodes, {topology.local_world_size} of them on this",
            "run the same number of ranks on every node",
        )
    if order.mix in {BATCH, BATCH_SAMPLE} and cut.partition_count != topology.node_count:
        raise _bad(
            f"as many partitions as nodes for mix={order.mix!r}, whose batches come from one source",
            cut.partition_count,
            "leave partitions out, or use mix='stratified' or 'sample'",
        )


def _slice(view: DatasetView, source: int) -> slice:
    shards = view.listing.shards_of(source)
    return slice(shards.start, shards.stop)


def _counts(view: DatasetView, urls: Sequence[str], source: int) -> NDArray[np.int64]:
    """Return the samples of each shard of a source, int64[shards].

    Raises:
        BadRequest: some counts are unknown.
    """
    shards, known = view.listing.shards_of(source), view.counts
    try:
        return np.fromiter((known[shard] for shard in shards), np.int64, len(shards))
    except KeyError:
        raise BadRequest(
            f"expected the sample counts of all {len(shards)} shards of a mixed dataset, got"
            f" {sum(shard in known for shard in shards)}",
            object=" ".join(urls),
            hint=f"run feedd index {urls[0]}",
            stage="plan",
        ) from None


def _mixture(order: OrderSpec, sources: Sequence[SourceSpec], cut: Partitioning, held: list[int]) -> Mixture:
    """Return the mixture of every partition.

    Args:
        order: what the request says about order and steps.
        sources: the mixed datasets.
        cut: how the sources are partitioned.
        held: for each source, the samples of the partition with the fewest.
    """
    weights = weights_of(sources)
    for source, samples in enumerate(held):
        if not samples and any(by_source[source] for by_source in weights.values()):
            raise BadRequest(
                f"expected samples of every mixed dataset in all {cut.partition_count} partitions, got none in some",
                object=" ".join(sources[source].urls),
                hint="use sharding='sample' or 'replicated', or more and smaller shards",
                stage="plan",
            )
    per_epoch = _epoch_samples(order)
    options = MixOptions(
        seed=0,
        mode=order.mix,
        batch_size=order.batch_size,
        source_samples=tuple(held),
        samples_per_epoch=None if per_epoch is None else per_epoch // cut.partition_count,
        step_samples=_step_samples(order) // cut.partition_count,
    )
    try:
        mixture = Mixture(weights, options)
    except BadRequest as error:
        names = "; ".join(f"source {number}: {source.urls[0]}" for number, source in enumerate(sources[:8]))
        raise BadRequest(error.message, object=names, hint=error.hint, stage="plan") from error
    _check_rounds(sources, mixture, held, options.step_samples)
    return mixture


def _check_rounds(sources: Sequence[SourceSpec], mixture: Mixture, held: list[int], step_samples: int) -> None:
    """Refuse a source that one step would read hundreds of times, because planning would take seconds."""
    for (_, parts), source in itertools.product(mixture.ratios, range(len(held))):
        taken = step_samples * parts[source] / sum(parts)
        if taken and max(taken, mixture.unit) > held[source] * _ROUNDS_MAX:
            raise BadRequest(
                f"expected a mixed dataset to repeat at most {_ROUNDS_MAX} times in a step, got one of {held[source]}"
                f" samples with a weight of {parts[source] / sum(parts):.3g} in a step of {step_samples}",
                object=" ".join(sources[source].urls),
                hint="lower its weight or batch_size",
                stage="plan",
            )


def _bad(expected: str, got: object, hint: str) -> BadRequest:
    return BadRequest(f"expected {expected}, got {got}", object="mix", hint=hint, stage="plan")


AnyReader: TypeAlias = Reader | MixedReader
"""The reader of one rank, with or without a mixture."""
