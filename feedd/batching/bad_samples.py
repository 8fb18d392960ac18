"""What is wrong with bad samples, and what is done about them: charged to a budget, named, left out or replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from feedd.batching.gather import reads_as
from feedd.batching.row_repeats import repeat_in_place, repeat_into, repeated, stand_ins
from feedd.batching.slot_layout import drop_rows
from feedd.errors import BadSample, ResourceExhausted
from feedd.flow.tasks import off_loop
from feedd.formats.missing_reasons import missing_reason
from feedd.recipe.bad_sample_policy import BadSamples, Failure
from feedd.recipe.label_recipes import is_label, unlabelled
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.quarantine import Quarantine
    from feedd.batching.slot_layout import Layout
    from feedd.ordering.batch_plan import BatchPlanGroup, BatchRows
    from feedd.values import BatchReady, Cursor, FieldRecipe, ShardFile, ShardIndex
    from feedd.workers.work import BadRow

OVERSIZE_MAX_BYTES = 2 << 30
_EPOCHS_MAX: Final = 64  # jobs that share a decode are in few
_LOGGED_MAX = 8  # of one batch; a data set that is bad as a whole must not fill the log
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class BadSampleOptions:
    """What a session asked for.

    Attributes:
        policy: what becomes of bad samples.
        samples_max: so many of them in an epoch, none under ``error``.
        quarantine: the daemon's file, for the policy of that name.
    """

    policy: BadSamples = BadSamples.SKIP
    samples_max: int = 0
    quarantine: Quarantine | None = None


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


class BadSampleHandler:
    """One session's."""

    def __init__(self, options: BadSampleOptions) -> None:
        self._options = options
        self._budget = FailureBudget(0 if options.policy is BadSamples.ERROR else options.samples_max)

    def check(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the budget.

        Raises:
            BadSample: they are not; a step may be found out after later ones were handed on.
        """
        self._budget.check(at)

    async def charge(self, at: Cursor, failures: Sequence[Failure]) -> None:
        """Name a batch's bad samples where they are to be named, and hold them against the budget.

        Raises:
            BadSample: it is spent.
        """
        if failures and self._options.quarantine is not None and self._options.policy is BadSamples.QUARANTINE:
            await self._options.quarantine.note(at.epoch, failures)
        self._budget.charge(at, failures)
        outcome = "replaced" if self._options.policy is BadSamples.REPLACE else "dropped"
        for one in failures[:_LOGGED_MAX]:
            _log.warning(f"bad sample {outcome}", url=one.url, key=one.key, field=one.field, reason=one.reason)
        if len(failures) > _LOGGED_MAX:
            _log.warning("more bad samples in the same batch", count=len(failures) - _LOGGED_MAX)

    async def applied(
        self, view: memoryview, layout: Layout, ready: BatchReady, failures: Sequence[Failure]
    ) -> BatchReady:
        """Return the batch without its bad rows, or with others in their place.

        Args:
            view: where it lies, tables written.
            layout: how.
            ready: the batch as it is.
            failures: what is bad; at least one.

        Raises:
            BadSample: all rows are bad where each should be replaced by a good one.
            ResourceExhausted: rows that were put in the place of smaller ones make it too large for memory.
        """
        good = np.ones(layout.rows, np.bool_)
        good[[one.row for one in failures]] = False
        count = layout.rows - int(good.sum())
        size_bytes = layout.size_bytes  # all of it may be moved
        if self._options.policy is BadSamples.REPLACE:
            replaced = await off_loop(lambda: _replaced(view, layout, ready, good, failures[0]), size_bytes)
            return replace(replaced, bad_samples=count)
        left = await off_loop(lambda: drop_rows(view, layout, np.flatnonzero(~good)), size_bytes)
        again = np.frombuffer(ready.again, np.uint8)[good].tobytes() if ready.again else b""
        return replace(ready, rows=left.rows, regions=left.regions, bad_samples=count, again=again)


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
    absent = None if held else missing_reason(index, known, ordinal)
    if absent is not None:
        return Failure(ref.url, index.key(ordinal), bad.field, absent.reason, bad.row, ordinal, absent.at)
    if held and field is not None and not reads_as(index.stored_as(held[0]), field.stored) and not told:
        reason = f"expected it stored as {field.stored or 'a file'}, got {index.stored_as(held[0]) or 'a file'}"
    if not held and not told and is_label(sources[0]):
        reason = f"expected a label, got none: {unlabelled(sources[0])}"
    columns = held[:1] or np.flatnonzero(index.sizes[:, ordinal] >= 0).tolist()
    offset = min((int(index.starts[column, ordinal]) for column in columns), default=-1)
    return Failure(ref.url, index.key(ordinal), bad.field, reason, bad.row, ordinal, offset)


def _replaced(
    view: memoryview, layout: Layout, ready: BatchReady, good: NDArray[np.bool_], first: Failure
) -> BatchReady:
    if not good.any():
        raise BadSample(
            f"expected a good sample to replace {layout.rows} bad ones of a step by, got none; "
            f"the first is {first.key!r}, field {first.field!r}: {first.reason}",
            object=first.url,
            hint="repair it, take larger batches, or bad_samples='skip'",
            stage="decode",
        )
    source = stand_ins(good)
    marks = np.frombuffer(ready.again or bytes(layout.rows), np.uint8)[source].copy()
    marks[~good] = 1
    fresh = repeated(layout, source)
    if fresh is layout:
        repeat_in_place(view, layout, source)
        return replace(ready, again=marks.tobytes())
    if fresh.size_bytes > OVERSIZE_MAX_BYTES:
        raise ResourceExhausted(
            f"expected a batch of at most {format_size(OVERSIZE_MAX_BYTES)}, got {format_size(fresh.size_bytes)}",
            object=first.url,
            hint="lower batch_size",
            stage="batch",
        )
    target = memoryview(bytearray(fresh.size_bytes))
    repeat_into(view, layout, source, target, fresh)
    oversize: memoryview | None = target
    if fresh.size_bytes <= view.nbytes:
        view[: fresh.size_bytes] = target
        oversize = None
    return replace(ready, regions=fresh.regions, size_bytes=fresh.size_bytes, again=marks.tobytes(), oversize=oversize)
