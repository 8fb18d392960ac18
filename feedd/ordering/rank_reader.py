"""One rank's way through its node's epochs: from a cursor to the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from feedd.dataset.step_counts import Deal, left_out
from feedd.errors import BadRequest
from feedd.ordering import rng
from feedd.ordering.batch_plan import RunPlan, rows_from, rows_of_run, whole_batches
from feedd.ordering.buckets import BUCKETS, NeedLengths, by_length, gathered, lengths_of
from feedd.ordering.epoch import EpochOptions, NeedCounts, seeds
from feedd.ordering.epoch_access import NodeAccess
from feedd.ordering.node_epoch import NodeEpoch
from feedd.ordering.sorted_windows import ROW_BYTES, NeedOrder, SortedWindows, WindowName, widened
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.dataset.assignment import Assignment
    from feedd.dataset.listing import DatasetView
    from feedd.ordering.batch_plan import BatchRows
    from feedd.ordering.node_epoch import Piece, Step
    from feedd.ordering.sorted_windows import Orders, WindowRows
    from feedd.shard_index import ShardIndex
    from feedd.values import Topology

WINDOWS_KEPT = 3
"""Per partition: a batch spans at most two windows; a third is for a concurrent batch, or is sorted in advance."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options shared by all epochs of a reader.

    Attributes:
        window_shards: see ``EpochOptions``.
        window_bytes: see ``EpochOptions``.
        batch_size: samples of a rank's step.
        steps: steps of every rank in every epoch; None: each rank ends with its samples.
        wrap: partitions that end before the last step begin again.
        bucket_by: names of the field by whose stored size the samples of a window are grouped; empty: at random.
        growing: see ``EpochOptions``.
    """

    seed: int
    shuffle: bool
    window_shards: int
    batch_size: int
    topology: Topology
    steps: int | None = None
    wrap: bool = False
    window_bytes: int = 0
    bucket_by: tuple[str, ...] = ()
    growing: bool = True


def own_orders(partition_count: int) -> Orders:
    """Return windows for readers that share them with no other: room for this epoch and for the next."""
    return SortedWindows(0).enter(None, 2 * WINDOWS_KEPT * partition_count)


class Reader:
    """Plans one rank's batches over its node's partitions. Synchronous; owns no resource."""

    def __init__(
        self,
        shares: tuple[Assignment, ...],
        options: ReaderOptions,
        counts: Mapping[int, int],
        orders: Orders | None = None,
    ) -> None:
        """Plan the rank's epochs.

        Args:
            shares: the node's partitions.
            options: options shared by all epochs.
            counts: sample counts by dataset index; may grow between calls, never change.
            orders: sorted windows of all readers of these shares and options; None: this is the only reader.
        """
        self._shares = shares
        self._options = options
        self._counts = counts
        topology = options.topology
        ranks = (topology.local_rank, topology.local_world_size)
        self._deal = Deal(options.batch_size, *ranks, options.steps, options.wrap)
        self._assigned = _assigned(shares)
        self._steps = options.steps
        self._rank_counts: tuple[NDArray[np.int64], ...] | None = None
        self._epoch = -1
        self._map: NodeEpoch | None = None
        self._access: tuple[DatasetView, NodeEpoch, NodeAccess] | None = None  # the last answer of ``access_at``
        self._lengths: dict[int, NDArray[np.int64]] = {}  # of the shards of a window that is being sorted by length
        self._orders = orders or own_orders(len(shares))
        self._latest: frozenset[WindowName] = frozenset()  # windows of the batch drawn last
        self._foreseen: Collection[WindowName] = ()  # windows for which the next ones were returned by ``next_order``
        self._next_order: tuple[int, NDArray[np.int32]] | None = None  # an epoch without its map, and its order

    def epoch_map(self, at: Cursor) -> NodeEpoch:
        """Return the map of the cursor's epoch, with the cursor's anchors added.

        Raises:
            BadRequest: an anchor contradicts the plan: the cursor is of another dataset, recipe or topology.
        """
        try:
            if self._map is None or self._epoch != at.epoch:
                self._map = self._new_map(at.epoch)
                self._epoch = at.epoch
            self._map.add_anchors(at.anchors)
        except ValueError as error:
            raise BadRequest(
                f"the cursor does not fit this dataset and topology: {error}",
                hint="resume with the state saved from the same dataset, batch size, seed and world size",
                stage="plan",
            ) from error
        return self._map

    @property
    def assigned(self) -> NDArray[np.int64]:
        """The node's shards (dataset indices), ascending, each once."""
        return self._assigned

    def order_of(self, epoch: int) -> NDArray[np.int32]:
        """Return the node's shards (dataset indices) in the order of ``epoch``; the last answer is remembered."""
        if self._map is not None and self._epoch == epoch:
            return self._map.order
        if self._next_order is None or self._next_order[0] != epoch:
            plan = NodeEpoch(self._shares, self.epoch_options(epoch), self._counts, self._deal)
            self._next_order = epoch, plan.order
        return self._next_order[1]

    def steps(self, epoch: int) -> int | None:
        """Return the rank's steps, the same in every epoch, or None if not known yet."""
        if self._steps is None and (known := self._known_counts()) is not None:
            plan = self.epoch_map(Cursor(epoch))
            plan.know(known)  # it may be older than the last count
            counts = [count for count in plan.sample_counts if count is not None]
            self._steps = plan.steps_before(-(-max(counts, default=0) * len(self._shares) // self._deal.batch_size))
        return self._steps

    def orders(self, at: Cursor) -> list[Sequence[int]]:
        """Return the node's shards (dataset indices) in reading order, for the only source."""
        return [self.epoch_map(at).order.data]  # its items are of type int

    def window(self, at: Cursor) -> int:
        """Return the window at a cursor, as far as the cursor tells."""
        return at.window

    def access_at(self, view: DatasetView, at: Cursor) -> NodeAccess:
        """Return the cursor's epoch as the cache sees it.

        Raises:
            BadRequest: see ``epoch_map``.
        """
        plan, known = self.epoch_map(at), self._access
        if known is None or known[0] is not view or known[1] is not plan:
            known = self._access = view, plan, NodeAccess(view, at.epoch, plan, self.order_of)
        return known[2]

    def left_out(self) -> int | None:
        """Return the rank's samples of an epoch after its last step, or None if not known yet."""
        deal = self._deal
        if deal.steps is None or deal.wrap:
            return 0
        counts = self._known_counts()
        return None if counts is None else left_out(np.array([its.sum() for its in counts]), deal.steps, deal)

    def epoch_options(self, epoch: int) -> EpochOptions:
        """Return the options that decide the order of an epoch."""
        options = self._options
        window = options.window_shards, options.window_bytes, options.growing
        return EpochOptions(epoch, options.seed, options.shuffle, *window)

    def rows(self, at: Cursor) -> BatchRows | NeedCounts | EpochEnd:
        """Return the batch at ``at``, the shards that must be indexed first, or the end of the epoch.

        Raises:
            BadRequest: see ``epoch_map``.
        """
        while isinstance(found := self.draw(at), NeedOrder):
            found.learn(found.sort())
        return found.rows() if isinstance(found, RunPlan) else found

    def draw(self, at: Cursor, count: int = 1, stride: int = 1) -> RunPlan | NeedCounts | NeedOrder | EpochEnd:
        """Return the same as ``rows``, but not grouped by shard; the caller sorts missing windows.

        Args:
            at: the first step.
            count: most batches. Fewer are returned if a window ends, or if a batch is not like the others.
            stride: steps from one batch to the next.

        Raises:
            BadRequest: see ``epoch_map``.
        """
        plan = self.epoch_map(at)
        if count > 1 and len(self._shares) == 1 and not self._deal.wrap:
            run = _run(plan, self._deal, self._orders, at, count, stride, self.epoch_options(at.epoch))
            if run is not None:
                self._latest = frozenset((WindowName(at.epoch, 0, run.last_window),))
                return run
        found = plan.step(at.step)
        if isinstance(found, NeedCounts):
            return found
        if not found.pieces:
            return EpochEnd(at.epoch, plan.steps_before(at.step))
        if not self._options.shuffle:
            return _gather(plan, [_span(plan, one) for one in found.pieces], found, at, self.epoch_options(at.epoch))
        names = {WindowName(at.epoch, one.partition, one.segment.window) for one in found.pieces}
        rows = {name: rows for name in names if (rows := self._orders.get(name)) is not None}
        if missing := sorted(names - rows.keys()):
            return self._need_lengths(plan, missing) or self._need_order(plan, missing, rows)
        self._latest = frozenset(rows)
        pieces = [_piece(rows, at.epoch, one) for one in found.pieces]
        return _gather(plan, pieces, found, at, self.epoch_options(at.epoch))

    def next_order(self) -> NeedOrder | None:
        """Return the job that sorts the windows after those of the last drawn batch, or None.

        The job is optional: a window that is not sorted in advance delays the batch that reads it.
        """
        if not self._options.shuffle or self._latest == self._foreseen or self._by_length or self._map is None:
            return None
        self._foreseen, plan = self._latest, self._map
        names: dict[WindowName, Callable[[], WindowRows]] = {}
        samples = 0
        following = cache(self._new_map)  # built once for all partitions, by the job
        for epoch, partition, window in sorted(self._latest):
            if not plan.is_last(partition, window):
                name = WindowName(epoch, partition, window + 1)
                if plan.is_counted(partition, window + 1):
                    names[name] = partial(plan.samples, partition, window + 1)
            elif self._known_counts() is not None:
                name = WindowName(epoch + 1, partition, 0)
                names[name] = partial(_first_samples, following, epoch + 1, partition)
            samples += plan.window_samples(partition, window)
        jobs = {name: job for name, job in names.items() if self._orders.get(name) is None}
        return self._to_sort(jobs, samples, self._latest) if jobs else None

    @property
    def _by_length(self) -> bool:
        return bool(self._options.bucket_by) and self._options.shuffle

    def _need_lengths(self, plan: NodeEpoch, names: Sequence[WindowName]) -> NeedLengths | None:
        """Return the shards whose lengths are needed to sort windows, or None if all are known."""
        if not self._by_length:
            return None
        shards = sorted({shard for _, part, window in names for shard in plan.partition(part).shards(window).tolist()})
        if self._lengths.keys() >= set(shards):
            return None

        def learn(indexes: Sequence[ShardIndex]) -> None:
            lengths = (lengths_of(index, self._options.bucket_by) for index in indexes)
            self._lengths = dict(zip(shards, lengths, strict=True))

        return NeedLengths(tuple(shards), learn)

    def _need_order(
        self, plan: NodeEpoch, names: Sequence[WindowName], held: Mapping[WindowName, WindowRows]
    ) -> NeedOrder:
        """Return the job that sorts the missing windows of a step; ``held`` are the others."""
        jobs = {name: self._sorting(plan, name) for name in names}
        self._lengths = {}
        samples = sum(plan.window_samples(name.partition, name.window) for name in names)
        return self._to_sort(jobs, samples, held.keys())

    def _to_sort(
        self, jobs: Mapping[WindowName, Callable[[], WindowRows]], samples: int, beside: Collection[WindowName]
    ) -> NeedOrder:
        """Return a sorting job; windows in ``beside`` are read together with its windows and not dropped for them."""

        def sort() -> dict[WindowName, WindowRows]:
            return {name: job() for name, job in jobs.items()}

        def learn(found: Mapping[WindowName, WindowRows]) -> None:
            held = {name: rows for name in beside if (rows := self._orders.get(name)) is not None}
            self._orders.learn({**held, **found})

        return NeedOrder((id(self._orders), *jobs), sort, samples * ROW_BYTES, learn)

    def _sorting(self, plan: NodeEpoch, name: WindowName) -> Callable[[], WindowRows]:
        """Return the call that sorts a partition's window, for any thread, because its inputs do not change."""
        order = partial(plan.samples, name.partition, name.window)
        if not self._by_length:
            return order
        lengths, start = self._lengths, plan.partition(name.partition).start(name.window)
        key = rng.derive(BUCKETS, self._options.seed, name.epoch, name.window)

        def sort() -> WindowRows:
            shard, ordinal = order()
            places = by_length(gathered(lengths, shard, ordinal), start, plan.step_samples, key)
            return shard[places], ordinal[places]

        return sort

    def _new_map(self, epoch: int) -> NodeEpoch:
        plan = NodeEpoch(self._shares, self.epoch_options(epoch), self._counts, self._deal)
        counts = self._known_counts()
        if counts is not None:
            plan.know(counts)
        return plan

    def _known_counts(self) -> tuple[NDArray[np.int64], ...] | None:
        """Return the samples of each share's shards, or None if a count is not known yet."""
        if self._rank_counts is None:
            counted = [counts for share in self._shares if (counts := share.counts(self._counts)) is not None]
            if len(counted) == len(self._shares):
                self._rank_counts = tuple(counted)
        return self._rank_counts


def _assigned(shares: Sequence[Assignment]) -> NDArray[np.int64]:
    if len(shares) == 1 and shares[0].step:
        return shares[0].shards  # they ascend
    shards = np.sort(np.concatenate([share.shards for share in shares]))
    # np.unique's first call imports numpy.ma, which takes 9 ms.
    return shards[np.diff(shards, prepend=-1) > 0]


def _first_samples(plan_of: Callable[[int], NodeEpoch], epoch: int, partition: int) -> WindowRows:
    """Return the samples of a partition's first window; all counts are known. May run in a thread."""
    return plan_of(epoch).samples(partition, 0)


def _piece(
    rows: Mapping[WindowName, WindowRows], epoch: int, piece: Piece
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    shard, ordinal = rows[WindowName(epoch, piece.partition, piece.segment.window)]
    return widened(shard, ordinal, slice(piece.segment.low, piece.segment.high))


def _span(plan: NodeEpoch, piece: Piece) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples of a piece without shuffle."""
    shard, first = plan.partition(piece.partition).first_sample(piece.segment.window)
    return np.broadcast_to(np.int64(shard), (piece.size,)), np.arange(
        first + piece.segment.low, first + piece.segment.high
    )


def _gather(
    plan: NodeEpoch,
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    found: Step,
    at: Cursor,
    options: EpochOptions,
) -> RunPlan:
    """Return the batch of a step, from the samples of its pieces."""
    shard, ordinal = parts[0]
    if len(parts) > 1:
        shard, ordinal = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    windows = [piece.segment.window for piece in found.pieces if not piece.again] or [plan.window_count - 1]
    again = None
    if any(piece.again for piece in found.pieces):
        again = np.repeat([piece.again for piece in found.pieces], [piece.size for piece in found.pieces])
    cursor = Cursor(at.epoch, at.step, found.anchors)
    its_seeds = partial(seeds, options, shard, ordinal)
    return RunPlan(cursor, shard, ordinal, its_seeds, min(windows), max(windows), again)


def _run(
    plan: NodeEpoch, deal: Deal, orders: Orders, at: Cursor, count: int, stride: int, options: EpochOptions
) -> RunPlan | None:
    """Return the batches of one partition's window; None: the first is not whole, or the window is not sorted."""
    found = plan.step(at.step)
    if isinstance(found, NeedCounts) or len(found.pieces) != 1 or found.pieces[0].size != deal.batch_size:
        return None
    segment, rows, spacing = found.pieces[0].segment, deal.batch_size, plan.step_samples * stride
    cursor, name = Cursor(at.epoch, at.step, found.anchors), WindowName(at.epoch, 0, segment.window)
    count = count if deal.steps is None else min(count, -(-(deal.steps - at.step) // stride))
    if not options.shuffle:
        count = whole_batches(plan.window_samples(0, name.window) - segment.low, rows, spacing, count)
        its_shard, first = plan.partition(0).first_sample(name.window)
        firsts = first + segment.low + np.arange(count) * spacing
        shard = np.broadcast_to(np.int64(its_shard), (count,))
        its_seeds = partial(_seeds_from, options, its_shard, firsts, rows)
        return RunPlan(cursor, shard, firsts, its_seeds, name.window, name.window, None, count, stride, rows)
    window = orders.get(name)
    if window is None:
        return None
    shard, ordinal = rows_of_run(window, segment.low, rows, spacing, count)
    its_seeds = partial(seeds, options, shard, ordinal)
    return RunPlan(
        cursor, shard, ordinal, its_seeds, name.window, name.window, count=len(ordinal) // rows, stride=stride
    )


def _seeds_from(options: EpochOptions, shard: int, firsts: NDArray[np.int64], rows: int) -> NDArray[np.uint64]:
    """Return the seeds of the rows that begin with ``firsts``, ``rows`` each."""
    ordinal = rows_from(firsts, rows)
    return seeds(options, np.broadcast_to(np.int64(shard), ordinal.shape), ordinal)
