"""The failure budget: how many bad samples of an epoch are dropped before one is an error. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.batching.gather import reads_as
from feedd.formats.missing_reasons import why_absent
from feedd.recipe.bad_sample_policy import Failure
from feedd.recipe.label_recipes import is_label, unlabelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.errors import BadSample
    from feedd.ordering.batch_plan import BatchPlanGroup, BatchRows
    from feedd.values import Cursor, FieldRecipe, ShardFile, ShardIndex
    from feedd.workers.work import BadRow

_EPOCHS_MAX: Final = 64  # jobs that share a decode are in few


@dataclass(slots=True)
class _Spent:
    """Bad samples of one epoch: count and first failure of each step that has any, and how many there are."""

    steps: dict[int, tuple[int, Failure]] = field(default_factory=dict)
    total: int = 0


class FailureBudget:
    """Bad samples of each epoch by step, so that neither who finishes first nor who is made twice matters.

    Jobs that share a decode share this, and may be in different epochs: each epoch has the whole budget.

    A step is beyond the budget where it and the steps before it have more bad samples than are allowed. A step that
    was handed on before an earlier one turned out bad stays; then the next one asked about is told.
    """

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._epochs: dict[int, _Spent] = {}  # the latest entered is the last

    def charge(self, at: Cursor, failures: Sequence[Failure]) -> None:
        """Take note of a step's bad samples, in the order of their rows; replaces what was known of the step.

        Raises:
            BadSample: the budget of the epoch is spent; names the first sample beyond it.
        """
        epoch = self._enter(at.epoch)
        if at.step in epoch.steps:
            epoch.total -= epoch.steps.pop(at.step)[0]
        if failures:
            epoch.steps[at.step] = len(failures), failures[0]
            epoch.total += len(failures)
            spent = sum(count for step, (count, _) in epoch.steps.items() if step < at.step)
            if spent <= self._samples_max < spent + len(failures):
                raise self._beyond(failures[self._samples_max - spent])
        self.check(at)

    def check(self, at: Cursor) -> None:
        """Make sure that the steps up to ``at`` are within the budget.

        Raises:
            BadSample: they are not.
        """
        epoch = self._enter(at.epoch)
        if epoch.total <= self._samples_max:
            return
        spent = 0
        for step in sorted(step for step in epoch.steps if step <= at.step):
            count, first = epoch.steps[step]
            spent += count
            if spent > self._samples_max:
                raise self._beyond(first)

    def _enter(self, epoch: int) -> _Spent:
        found = self._epochs.pop(epoch) if epoch in self._epochs else _Spent()
        self._epochs[epoch] = found
        if len(self._epochs) > _EPOCHS_MAX:
            del self._epochs[next(iter(self._epochs))]
        return found

    def _beyond(self, failure: Failure) -> BadSample:
        return failure.error(f"repair it, or allow more bad samples than {self._samples_max} per epoch")


def failure_of(
    rows: BatchRows | BatchPlanGroup,
    indexes: Sequence[ShardIndex],
    files: Sequence[ShardFile],
    recipe: Sequence[FieldRecipe],
    bad: BadRow,
    *,
    told: bool = False,
) -> Failure:
    """Return what is wrong with a row, and where its bytes lie.

    Args:
        rows: of the batch.
        indexes: of its shards.
        files: likewise.
        recipe: all fields it may be about.
        bad: the row.
        told: its reason says all.
    """
    number, ordinal = int(rows.shard_no[bad.row]), int(rows.ordinal[bad.row])
    index, ref, reason = indexes[number], files[number].ref, bad.reason
    field = next((one for one in recipe if one.name == bad.field), None)
    sources = (bad.field,) if field is None else field.sources
    known = [index.fields.index(source) for source in sources if source in index.fields]
    held = [column for column in known if index.sizes[column, ordinal] >= 0]
    absent = None if held else why_absent(index, known, ordinal)
    if absent is not None:
        return Failure(ref.url, index.key(ordinal), bad.field, absent.reason, bad.row, ordinal, absent.at)
    if held and field is not None and not reads_as(index.stored_as(held[0]), field.stored) and not told:
        reason = f"expected it stored as {field.stored or 'a file'}, got {index.stored_as(held[0]) or 'a file'}"
    if not held and not told and is_label(sources[0]):
        reason = f"expected a label, got none: {unlabelled(sources[0])}"
    columns = held[:1] or np.flatnonzero(index.sizes[:, ordinal] >= 0).tolist()
    offset = min((int(index.starts[column, ordinal]) for column in columns), default=-1)
    return Failure(ref.url, index.key(ordinal), bad.field, reason, bad.row, ordinal, offset)
