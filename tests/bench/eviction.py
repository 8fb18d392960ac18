"""Bench: share of bytes found in a cache smaller than the data, over reshuffled epochs, by who is evicted."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.cache import entry_layout
from feedd.dataset.assignment import Assignment
from feedd.dataset.listing import Listing
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.sessions.prefetch_driver import PrefetchDriver, ReaderGroups
from feedd.values import Cursor, ObjectRef, Topology
from tests.bench.harness import Outcome
from tests.bench.report import Column, Result, Verdict
from tests.fakes.books import BooksCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.dataset.listing import DatasetView
    from tests.bench.plan import Plan

SHARES = (0.25, 0.5, 0.75)
EPOCHS = 6  # the first is cold, the last is only looked ahead to: what lies between is counted
_SHARD_BYTES = 4 << 20
_SEED = 7
COLUMNS = tuple(Column(f"hit % at {share:.0%}", f"hit_{share}", scale=100) for share in SHARES)


@dataclass(frozen=True, slots=True)
class Trace:
    """What a node reads: windows of shards, epoch after epoch, in the order of the real plan."""

    view: DatasetView
    reader: Reader
    epochs: tuple[tuple[tuple[ObjectRef, ...], ...], ...]

    @property
    def size_bytes(self) -> int:
        """Disk bytes of the dataset."""
        return sum(map(entry_layout.disk_bytes, self.view.refs))

    @property
    def counted_bytes(self) -> int:
        """Bytes read in the epochs that count."""
        return sum(ref.size_bytes for epoch in self.epochs[1:-1] for window in epoch for ref in window)


def trace(shard_count: int, *, uneven: bool = False, window_shards: int = 4, epoch_count: int = EPOCHS) -> Trace:
    """Plan some epochs of a dataset of equal shards, or of shards between an eighth and twice the size."""
    rng = random.Random(_SEED)
    sizes = [int(_SHARD_BYTES * rng.uniform(0.125, 2)) if uneven else _SHARD_BYTES for _ in range(shard_count)]
    listing = Listing.of([ObjectRef("s3://b", f"{n:06d}.tar", size, "e") for n, size in enumerate(sizes)], 0.0)
    options = ReaderOptions(_SEED, shuffle=True, window_shards=window_shards, batch_size=64, topology=Topology())
    reader = Reader((Assignment(np.arange(shard_count)),), options, listing.counts)
    epochs = []
    for epoch in range(epoch_count):
        plan = reader.epoch_map(Cursor(epoch))
        windows = (plan.shards(window).tolist() for window in range(plan.window_count))
        epochs.append(tuple(tuple(listing.refs[shard] for shard in shards) for shards in windows))
    return Trace(listing.as_listed, reader, tuple(epochs))


def feedd(trace: Trace, size_bytes: int) -> float:
    """Hit rate of feedd: the future told as a session tells it, wishes served as far ahead as they may be."""
    cache = BooksCache(size_bytes)
    prefetch_driver = PrefetchDriver("reader", trace.view, trace.reader, cache.seam, ReaderGroups())
    prefetch_driver.enter(Cursor())
    fetched = [0]
    for epoch, windows in enumerate(trace.epochs):
        for number, refs in enumerate(windows):
            prefetch_driver.advance(Cursor(epoch), number, number, number)
            cache.use(refs)
            prefetch_driver.finished(number)
        fetched.append(cache.fetched_bytes)
    return 1 - (fetched[-2] - fetched[1]) / trace.counted_bytes


def lru(trace: Trace, size_bytes: int) -> float:
    """Hit rate where the least recently used goes."""
    return _online(trace, size_bytes, evict=True)


def fill_and_keep(trace: Trace, size_bytes: int) -> float:
    """Hit rate where what came first stays."""
    return _online(trace, size_bytes, evict=False)


def _online(trace: Trace, size_bytes: int, *, evict: bool) -> float:
    held: OrderedDict[ObjectRef, int] = OrderedDict()
    used_bytes = hit_bytes = 0
    for epoch, windows in enumerate(trace.epochs):
        for ref in itertools.chain.from_iterable(windows):
            if ref in held:
                hit_bytes += ref.size_bytes if 0 < epoch < len(trace.epochs) - 1 else 0
                held.move_to_end(ref)
                continue
            wanted_bytes = entry_layout.disk_bytes(ref)
            while evict and used_bytes + wanted_bytes > size_bytes:
                used_bytes -= held.popitem(last=False)[1]
            if used_bytes + wanted_bytes <= size_bytes:
                held[ref] = wanted_bytes
                used_bytes += wanted_bytes
    return hit_bytes / trace.counted_bytes


def optimum(trace: Trace, size_bytes: int) -> float:
    """Upper bound of any policy's hit rate, with the whole trace known.

    Belady's MIN, with bypassing, over bytes: shards may be kept in part, so that all cached things have one size and
    MIN is exact. Whole shards can only do as well or worse; for equal sizes the two differ by less than one shard.
    """
    reads = [(epoch, ref) for epoch, windows in enumerate(trace.epochs) for window in windows for ref in window]
    next_use: list[float] = [math.inf] * len(reads)
    seen: dict[ObjectRef, int] = {}
    for place in range(len(reads) - 1, -1, -1):
        next_use[place] = seen.get(reads[place][1], math.inf)
        seen[reads[place][1]] = place
    kept: dict[ObjectRef, int] = {}
    due: dict[ObjectRef, float] = {}
    furthest: list[tuple[float, str, ObjectRef]] = []
    used_bytes = 0
    hit = 0.0
    for place, (epoch, ref) in enumerate(reads):
        whole_bytes = entry_layout.disk_bytes(ref)
        had_bytes = kept.get(ref, 0)
        if 0 < epoch < len(trace.epochs) - 1:
            hit += ref.size_bytes * had_bytes / whole_bytes
        used_bytes += whole_bytes - had_bytes
        kept[ref], due[ref] = whole_bytes, next_use[place]
        heapq.heappush(furthest, (-next_use[place], ref.key, ref))
        while used_bytes > size_bytes:
            use, _, last = furthest[0]
            if due[last] != -use or not kept[last]:
                heapq.heappop(furthest)
                continue
            cut_bytes = min(kept[last], used_bytes - size_bytes)
            kept[last] -= cut_bytes
            used_bytes -= cut_bytes
    return hit / trace.counted_bytes


POLICIES: dict[str, Callable[[Trace, int], float]] = {
    "offline optimum": optimum,
    "feedd": feedd,
    "fill and keep": fill_and_keep,
    "LRU": lru,
}


def table(trace: Trace, name: str, shares: Sequence[float] = SHARES) -> list[Outcome]:
    """Run every policy at every size of the cache."""
    return [
        Outcome(f"{policy}, {name}", rounds=[{f"hit_{s}": run(trace, int(s * trace.size_bytes)) for s in shares}])
        for policy, run in POLICIES.items()
    ]


def run(plan: Plan) -> Result:
    """Simulate; no time is measured, so once is enough."""
    shard_count = 400 if plan.quick else 2000
    result = Result("eviction", f"bytes found in the cache, {shard_count:,} shards, by its share of them", COLUMNS, [])
    for name, uneven in (("equal shards", False), ("uneven shards", True)):
        plan.say(f"eviction: {name}")
        result.outcomes += table(trace(shard_count, uneven=uneven), name)
        best, ours = (result.outcome(f"{policy}, {name}") for policy in ("offline optimum", "feedd"))
        assert best is not None
        assert ours is not None
        for share in SHARES:
            figure = f"hit_{share}"
            ratio = 1 - (best.middle(figure) or 0.0) + (ours.middle(figure) or 0.0)
            result.verdicts.append(Verdict(f"feedd - optimum + 1 at {share:.0%}, {name}", ratio, 0.98))
    result.notes = [
        f"{EPOCHS} epochs reshuffled by the real plan in windows of 4 shards; the first and the last do not count.",
        "Optimum: Belady's MIN over bytes, the whole trace known, shards kept in part: no policy can do better.",
        "feedd: index, eviction and prefetching as they are, with fills that end at once: reading ahead at its most.",
    ]
    return result
