"""How much of each epoch comes from a cache smaller than the data, held against the best that is possible."""

from __future__ import annotations

import math

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment
from feedd.dataset.listing import Listing
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.sessions.prefetch_driver import PrefetchDriver, ReaderGroups
from feedd.values import Cursor, ObjectRef, Topology
from tests.bench.eviction import SHARES, feedd, fill_and_keep, lru, optimum, trace
from tests.fakes.books import BooksCache


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.slow
def test_hit_rate_is_within_two_points_of_the_optimum(share: float, *, uneven: bool) -> None:
    """Over reshuffled epochs feedd finds as much in the cache as Belady's MIN would, which knows the whole trace."""
    planned = trace(300, uneven=uneven)
    size_bytes = int(share * planned.size_bytes)
    best = optimum(planned, size_bytes)
    assert best == pytest.approx(share, abs=0.01)  # of each epoch no more can be found than was kept from the last
    assert best >= feedd(planned, size_bytes) >= best - 0.02
    assert fill_and_keep(planned, size_bytes) <= best + 1e-9
    assert lru(planned, size_bytes) < best - 0.15


def test_optimum_of_small_traces_is_that_of_trying_everything() -> None:
    """The oracle's figure is what the best of all choices gives, found by trying them."""
    for seed in range(3):
        planned = trace(5, window_shards=2, epoch_count=4 + seed % 2)
        reads = [(e, ref) for e, windows in enumerate(planned.epochs) for window in windows for ref in window]
        last = len(planned.epochs) - 1
        states: dict[frozenset[ObjectRef], int] = {frozenset(): 0}
        for epoch, ref in reads:
            after: dict[frozenset[ObjectRef], int] = {}
            for held, hits in states.items():
                gained = hits + (ref in held and 0 < epoch < last)
                options = [held, *((held | {ref}) - {other} for other in held | {ref})]
                if len(held | {ref}) <= 2:
                    options.append(held | {ref})
                for option in options:
                    after[option] = max(after.get(option, 0), gained)
            states = after
        size_bytes = 2 * planned.size_bytes // 5
        assert optimum(planned, size_bytes) == pytest.approx(max(states.values()) / (5 * (last - 1)))


def test_two_jobs_over_one_dataset_share_what_is_kept() -> None:
    """Two jobs in different orders, one twice as fast: each byte kept serves both, and neither fetches more for it."""
    listing = Listing.of([ObjectRef("s3://b", f"{n:03d}.tar", 1 << 20, "e") for n in range(120)], 0.0)
    reader_groups = ReaderGroups()
    cache = BooksCache(60 * ((1 << 20) + 4096))
    readers = []
    for seed in range(2):
        options = ReaderOptions(seed, shuffle=True, window_shards=4, batch_size=8, topology=Topology())
        readers.append(Reader((Assignment(np.arange(120)),), options, listing.counts))
    drivers = [
        PrefetchDriver(f"job-{n}", listing.as_listed, reader, cache.seam, reader_groups)
        for n, reader in enumerate(readers)
    ]
    for prefetch_driver in drivers:
        prefetch_driver.enter(Cursor())
    read_bytes, begun = 0, 0
    for tick in range(30 * 8):
        if tick == 60:  # all is cold before
            read_bytes, begun = 0, cache.fetched_bytes
        for job, step in ((0, tick), (1, tick // 2)):
            if job == 1 and tick % 2:
                continue
            epoch, window = divmod(step, 30)
            plan = readers[job].epoch_map(Cursor(epoch))
            refs = [listing.refs[shard] for shard in plan.shards(window).tolist()]
            drivers[job].advance(Cursor(epoch), window, window, tick)
            cache.use(refs)
            drivers[job].finished(tick)
            read_bytes += sum(ref.size_bytes for ref in refs)
    for prefetch_driver in drivers:
        prefetch_driver.close()
    assert 1 - (cache.fetched_bytes - begun) / read_bytes > 0.5  # as much as one alone would find, and more
    assert reader_groups.timeline.stream_count == 0
    assert all(math.isinf(entry.next_use) for entry in cache.index)
