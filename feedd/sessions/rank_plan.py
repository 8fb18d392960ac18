"""Turns a client's request into a plan: which rank reads which samples, in how many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.dataset.step_counts import Uneven, parse_uneven
from feedd.ordering.mixed_reader import AnyReader, MixedPlan, MixedReader
from feedd.ordering.rank_reader import WINDOWS_KEPT, Reader, ReaderOptions, own_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.catalog.open_request import Request
    from feedd.dataset.listing import Listing
    from feedd.ordering.sorted_windows import Orders, SortedWindows


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of one rank.

    Attributes:
        reader: makes a reader; each reader is in an epoch of its own.
        uneven: how the steps of all ranks are made equal.
        steps: steps of every rank, if they were requested or must be equal; None: the reader determines them.
    """

    reader: Callable[[], AnyReader]
    uneven: Uneven
    steps: int | None = None


def windows_of(windows: SortedWindows, listing: Listing, request: Request) -> Orders | None:
    """Return the sorted windows that all ranks of the node share, or None for a mixture, which sorts its own.

    Ranks of one run open one listing, and their plans differ only in which rows of each step are theirs.
    """
    if request.mix is not None:
        return None
    spec, topology = request.spec, request.spec.topology
    parts = len(range(topology.node_rank, spec.partitions or topology.node_count, topology.node_count))
    order = (spec.seed, spec.shuffle, request.window(listing), spec.window_bytes, request.bucket_sources)
    step = (spec.batch_size, topology.local_world_size) if request.bucket_sources else ()
    cut = (spec.sharding, spec.partitions, topology.node_count, topology.node_rank)
    key = (id(listing.counts), listing.view, *order, *step, *cut)
    return windows.enter(key, WINDOWS_KEPT * max(parts, 1), listing.counts)


def planned(listing: Listing, request: Request, orders: Orders | None = None) -> Planned:
    """Plan what a rank reads; takes microseconds per shard.

    Args:
        listing: the dataset.
        request: the client's request.
        orders: windows that other readers sort as well; None: the readers of this plan share theirs.

    Raises:
        BadRequest, Unsupported: the request does not suit the data.
    """
    spec = request.spec
    uneven = parse_uneven(spec.uneven)
    if request.mix is not None:
        plan = MixedPlan.of(listing, spec, request.window(listing))  # its ranks always have equal steps
        return Planned(lambda: MixedReader(plan), Uneven.DROP if uneven is Uneven.AUTO else uneven)
    uneven = listing.settled(uneven)
    shares, steps = listing.shares(spec), listing.steps(spec, uneven)
    wrap = uneven in {Uneven.PAD, Uneven.REPEAT}
    options = ReaderOptions(
        spec.seed,
        spec.shuffle,
        request.window(listing),
        spec.batch_size,
        spec.topology,
        steps,
        wrap,
        spec.window_bytes,
        request.bucket_sources,
    )
    own = orders or own_orders(len(shares))
    return Planned(lambda: Reader(shares, options, listing.counts, own), uneven, steps)
