"""Runs: batches of successive steps that lie in one slot, one behind the other. Pure.

One production, one message and one lease of a run cost about as much as those of a batch. So sessions whose batches are
small and cheap to make have slots for runs. The first runs of a stream are short, so that its first batch does not wait
for many others. A later epoch of a session begins with a longer run, because that is made in advance.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROWTH: Final = 4
_LATER_FIRST: Final = 16  # batches


def run_lengths(run_batches: int, *, later_epoch: bool = False) -> Iterator[int]:
    """Yield the batches of each run of a stream: 1, 4, 16, ..., then always ``run_batches``.

    Args:
        run_batches: batches of a full run.
        later_epoch: the session has streamed an epoch before; the lengths then begin with 16.
    """
    count = _LATER_FIRST if later_epoch else 1
    while True:
        yield min(count, run_batches)
        count = min(count * _GROWTH, run_batches)


def first_runs(run_batches: int, run_count: int) -> dict[int, int]:
    """Return the batches of the first runs of a later epoch, by the first step of each run."""
    lengths = list(itertools.islice(run_lengths(run_batches, later_epoch=True), run_count))
    return dict(zip(itertools.accumulate(lengths[:-1], initial=0), lengths, strict=True))
