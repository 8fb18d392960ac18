"""Runs: batches of successive steps of a stream that lie in one slot, one behind the other. Pure.

One production, one message and one lease of a run cost about as much as those of a batch. So sessions whose batches are
small and cheap to make have slots for runs. The first runs of a stream are short, so that its first batch does not wait
for many others. A later epoch of a session begins with a longer run, because that is made in advance.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from feedd.values import Cursor, Produced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.errors import FeeddError
    from feedd.values import BatchReady, SlotRef

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


def first_runs(run_batches: int, run_count: int) -> list[tuple[int, int]]:
    """Return the first runs of a later epoch: the number of batches before each, and its own number of batches."""
    lengths = list(itertools.islice(run_lengths(run_batches, later_epoch=True), run_count))
    return list(zip(itertools.accumulate(lengths[:-1], initial=0), lengths, strict=True))


class MadeRun:
    """The batches of a run in a slot, as they are made.

    Attributes:
        slot: the slot.
        stride: steps from one batch to the next.
        batches: the first batch, and those that are not ``alike``.
        alike: see ``Produced``.
        count: number of batches.
        failure: see ``Produced``.
    """

    def __init__(self, slot: SlotRef, stride: int = 1) -> None:
        self.slot = slot
        self.stride = stride
        self.batches: list[BatchReady] = []
        self.alike = 0
        self.count = 0
        self.failure: FeeddError | None = None

    def add(self, batch: BatchReady, count: int = 1) -> None:
        """Append a batch, and ``count - 1`` that differ from it in their steps only."""
        at = batch.cursor
        if not self.batches:
            self.batches.append(batch)
            self.alike = count - 1
        elif len(self.batches) == 1 and replace(self.batches[0], cursor=at) == batch and self._follows(at):
            self.alike += count
        else:
            for number in range(count):
                step = at.step + number * self.stride
                self.batches.append(replace(batch, cursor=Cursor(at.epoch, step, at.anchors)))
        self.count += count

    def produced(self) -> Produced:
        """Return the run.

        Raises:
            FeeddError: the first batch could not be made.
        """
        if not self.batches:
            assert self.failure is not None, "a run without batches"
            raise self.failure
        return Produced(self.batches[0], self.slot, self.alike, tuple(self.batches[1:]), self.failure)

    def _follows(self, at: Cursor) -> bool:
        first = self.batches[0].cursor
        return (at.epoch, at.step, at.anchors) == (first.epoch, first.step + self.count * self.stride, first.anchors)
