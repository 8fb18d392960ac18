"""Turns a client's request into a plan: which rank reads which samples, in how many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.dataset.listing import growing_windows
from feedd.dataset.step_counts import Uneven, parse_uneven
from feedd.ordering.mixed_reader import AnyReader, MixedPlan, MixedReader
from feedd.ordering.rank_reader import WINDOWS_KEPT, Reader, ReaderOptions, own_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.catalog.open_request import Request
    from feedd.dataset.listing import DatasetView
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


def windows_of(windows: SortedWindows, view: DatasetView, request: Request) -> Orders | None:
    """Return the sorted windows that all ranks of the node share, or None for a mixture, which sorts its own.

    Ranks of one run open one listing, and their plans differ only in which rows of each step are theirs.
    """
    if request.mix is not None:
        return None
    asked = request.spec.order
    topology = asked.topology
    parts = len(range(topology.node_rank, asked.partitions or topology.node_count, topology.node_count))
    grows = growing_windows(view.listing, asked)
    order = (asked.seed, asked.shuffle, request.window(view.listing), asked.window_bytes, grows, request.bucket_sources)
    step = (asked.batch_size, topology.local_world_size) if request.bucket_sources else ()
    cut = (asked.sharding, asked.partitions, topology.node_count, topology.node_rank)
    key = (id(view.counts), view.name, *order, *step, *cut)
    return windows.enter(key, WINDOWS_KEPT * max(parts, 1), view.counts)


def planned(view: DatasetView, request: Request, orders: Orders | None = None) -> Planned:
    """Plan what a rank reads; takes microseconds per shard.

    Args:
        view: the dataset.
        request: the client's request.
        orders: windows that other readers sort as well; None: the readers of this plan share theirs.

    Raises:
        BadRequest, Unsupported: the request does not suit the data.
    """
    asked = request.spec.order
    uneven = parse_uneven(asked.uneven)
    if request.mix is not None:
        sources = request.spec.data.sources
        plan = MixedPlan.of(view, asked, sources, request.window(view.listing))  # its ranks always have equal steps
        return Planned(lambda: MixedReader(plan), Uneven.DROP if uneven is Uneven.AUTO else uneven)
    uneven = view.listing.settled(uneven)
    shares, steps = view.shares(asked), view.steps(asked, uneven)
    wrap = uneven in {Uneven.PAD, Uneven.REPEAT}
    options = ReaderOptions(
        asked.seed,
        asked.shuffle,
        request.window(view.listing),
        asked.batch_size,
        asked.topology,
        steps,
        wrap,
        asked.window_bytes,
        request.bucket_sources,
        growing_windows(view.listing, asked),
    )
    own = orders or own_orders(len(shares))
    return Planned(lambda: Reader(shares, options, view.counts, own), uneven, steps)
