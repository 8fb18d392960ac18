"""One rank's walk through its node's epochs: from a cursor to the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadRequest
from feedd.plan.epoch import (
    EpochMap,
    EpochOptions,
    Located,
    NeedCounts,
    PastEnd,
    batch_of,
    epoch_order,
    rank_steps,
    seeds,
)
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from feedd.values import Topology

_WINDOWS_KEPT = 3  # a batch spans two windows at most times; the third serves a neighbour in production


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What all epochs of a reader share."""

    seed: int
    shuffle: bool
    window_shards: int
    batch_size: int
    topology: Topology


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of one batch.

    Attributes:
        cursor: position of this batch, with an anchor that finds it again.
        shards: int64[n], distinct shards (dataset indices) in order of first use.
        shard_no: int32[rows], index into ``shards``.
        ordinal: int64[rows], sample within its shard.
        seeds: uint64[rows], for augmentation.
        first_window: window of the first row.
        last_window: window of the last row.
    """

    cursor: Cursor
    shards: NDArray[np.int64]
    shard_no: NDArray[np.int32]
    ordinal: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    first_window: int
    last_window: int


class Reader:
    """Plans one rank's batches over one assignment. Synchronous; owns no resource."""

    def __init__(self, assigned: NDArray[np.int64], options: ReaderOptions, counts: Mapping[int, int]) -> None:
        self._assigned = assigned
        self._options = options
        self._counts = counts
        self._epoch = -1
        self._map: EpochMap | None = None
        self._windows: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._places: dict[int, int] = {}
        self._places_epoch = -1

    def epoch_map(self, at: Cursor) -> EpochMap:
        """Return the map of the cursor's epoch, knowing the cursor's anchor.

        Raises:
            BadRequest: the anchor contradicts the plan: the cursor is of another dataset, recipe or topology.
        """
        options = self.epoch_options(at.epoch)
        try:
            if self._map is None or self._epoch != at.epoch:
                self._map = EpochMap(self._assigned, options, self._counts, anchor=(at.anchor_window, at.anchor_sample))
                self._epoch = at.epoch
                self._windows.clear()
            else:
                self._map.add_anchor(at.anchor_window, at.anchor_sample)
        except ValueError as error:
            raise BadRequest(
                f"expected a cursor of this dataset and topology, got one that does not fit: {error}",
                hint="resume with the state saved from the same dataset, batch size, seed and world size",
                stage="plan",
            ) from error
        return self._map

    @property
    def assigned(self) -> NDArray[np.int64]:
        """The node's shards (dataset indices), ascending."""
        return self._assigned

    @property
    def assigned_count(self) -> int:
        """Shards of the node."""
        return int(self._assigned.shape[0])

    def places(self, epoch: int) -> dict[int, int]:
        """Return each assigned shard's place in the order of ``epoch``; computed once per epoch."""
        if self._places_epoch != epoch:
            order = epoch_order(self._assigned, self.epoch_options(epoch))
            self._places = {shard: place for place, shard in enumerate(order.tolist())}
            self._places_epoch = epoch
        return self._places

    def epoch_options(self, epoch: int) -> EpochOptions:
        """Return what the order of an epoch depends on."""
        options = self._options
        return EpochOptions(epoch, options.seed, options.shuffle, options.window_shards, options.batch_size)

    def rows(self, at: Cursor) -> BatchRows | NeedCounts | EpochEnd:
        """Return the batch at ``at``, the shards that must be indexed first, or the end of the epoch.

        Raises:
            BadRequest: see ``epoch_map``.
        """
        plan = self.epoch_map(at)
        topology = self._options.topology
        found = plan.locate(batch_of(at.step, topology.local_rank, topology.local_world_size))
        if isinstance(found, NeedCounts):
            return found
        if isinstance(found, PastEnd):
            steps = rank_steps(found.samples, self._options.batch_size, topology.local_rank, topology.local_world_size)
            return EpochEnd(at.epoch, steps)
        return self._gather(plan, found, at)

    def _gather(self, plan: EpochMap, found: Located, at: Cursor) -> BatchRows:
        pieces = [self._window(plan, segment.window) for segment in found.segments]
        spans = [slice(segment.low, segment.high) for segment in found.segments]
        shard = np.concatenate([piece[0][span] for piece, span in zip(pieces, spans, strict=True)])
        ordinal = np.concatenate([piece[1][span] for piece, span in zip(pieces, spans, strict=True)])
        distinct, first, inverse = np.unique(shard, return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        rank_of = np.empty_like(by_use)
        rank_of[by_use] = np.arange(by_use.shape[0])
        return BatchRows(
            cursor=Cursor(at.epoch, at.step, found.anchor_window, found.anchor_sample),
            shards=distinct[by_use],
            shard_no=rank_of[inverse].astype(np.int32),
            ordinal=ordinal,
            seeds=seeds(self.epoch_options(at.epoch), shard, ordinal),
            first_window=found.segments[0].window,
            last_window=found.segments[-1].window,
        )

    def _window(self, plan: EpochMap, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        known = self._windows.get(window)
        if known is None:
            known = self._windows[window] = plan.samples(window)
            while len(self._windows) > _WINDOWS_KEPT:
                del self._windows[next(iter(self._windows))]
        return known
