"""Runs: batches of successive steps that lie in one slot, one behind the other. Pure.

One production, one message and one lease of a run cost about as much as those of a batch. So sessions whose batches are
small and cheap to make have slots for runs. The first runs of a stream are short, so that its first batch does not wait
for many others.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROWTH: Final = 4


def run_lengths(run_batches: int) -> Iterator[int]:
    """Yield the batches of each run of a stream: 1, 4, 16, ..., then always ``run_batches``."""
    count = 1
    while True:
        yield min(count, run_batches)
        count = min(count * _GROWTH, run_batches)


def first_runs(run_batches: int, run_count: int) -> dict[int, int]:
    """Return the batches of the first runs of a stream that begins with step 0, by the first step of each run."""
    lengths = list(itertools.islice(run_lengths(run_batches), run_count))
    return dict(zip(itertools.accumulate(lengths[:-1], initial=0), lengths, strict=True))
