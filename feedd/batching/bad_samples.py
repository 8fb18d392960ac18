"""Handling of bad samples: charged to a budget, logged, and dropped or replaced."""

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
from feedd.owner import Owner
from feedd.recipe.bad_sample_policy import BadSamples, Failure
from feedd.recipe.label_recipes import is_label, unlabelled
from feedd.units import format_size
from feedd.values import Cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.quarantine import Quarantine
    from feedd.batching.recent_bad_samples import RecentBadSamples
    from feedd.batching.slot_layout import Layout
    from feedd.ordering.batch_plan import BatchRows, RunRows
    from feedd.shard_index import ShardIndex
    from feedd.values import BatchReady, FieldRecipe, ShardFile
    from feedd.workers.work import BadRow

OVERSIZE_MAX_BYTES = 2 << 30
_EPOCHS_MAX: Final = 64  # jobs that share a decode are in few epochs
_LOGGED_MAX = 8  # per batch, so that an entirely bad dataset does not fill the log
_OUTCOMES: Final = {
    BadSamples.ERROR: "error",
    BadSamples.SKIP: "dropped",
    BadSamples.REPLACE: "replaced",
    BadSamples.QUARANTINE: "dropped",
}
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class BadSampleOptions:
    """A session's options for bad samples.

    Attributes:
        policy: what happens to bad samples.
        samples_max: maximum number of bad samples in an epoch; ``error`` allows none.
        quarantine: the daemon's file, for the policy ``quarantine``.
        recent: the daemon's latest bad samples, to be shown; None: nobody shows them.
        owner: whose session it is.
    """

    policy: BadSamples = BadSamples.SKIP
    samples_max: int = 0
    quarantine: Quarantine | None = None
    recent: RecentBadSamples | None = None
    owner: Owner = field(default_factory=Owner.of_this_process)


@dataclass(slots=True)
class _Spent:
    """Bad samples of one epoch: count and first failure of each step that has any, and the total count."""

    steps: dict[int, tuple[int, Failure]] = field(default_factory=dict)
    total: int = 0


class FailureBudget:
    """Counts bad samples by epoch and step, so that neither the order of batches nor repeated batches matter.

    Jobs that share a decode share this budget, and may be in different epochs. Each epoch has the whole budget.

    A step is beyond the budget if it and the steps before it have more bad samples than are allowed. If a step was
    delivered before an earlier step turned out bad, the next checked step raises the error.
    """

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._epochs: dict[int, _Spent] = {}  # the epoch used last is at the end

    def charge(self, at: Cursor, failures: Sequence[Failure]) -> None:
        """Record a step's bad samples, in the order of their rows; replaces an earlier record of the step.

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

    def charge_none(self, first: Cursor, count: int, stride: int = 1) -> None:
        """Record that ``count`` steps from ``first`` on, ``stride`` apart, have no bad samples.

        Raises:
            BadSample: as ``charge``.
        """
        known = self._enter(first.epoch).steps
        if known:
            for step in range(first.step, first.step + count * stride, stride):
                self.charge(Cursor(first.epoch, step), ())

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
        return failure.error(
            f"repair it, give the field another recipe, or allow more bad samples than {self._samples_max} per epoch: "
            "see bad_samples= and max_bad_samples="
        )


class BadSampleHandler:
    """Handles the bad samples of one session."""

    def __init__(self, options: BadSampleOptions) -> None:
        self._options = options
        self._budget = FailureBudget(0 if options.policy is BadSamples.ERROR else options.samples_max)

    def check(self, at: Cursor) -> None:
        """Make sure that the epoch's steps up to ``at`` are within the budget.

        Raises:
            BadSample: they are not; a step may be found out after later ones were handed on.
        """
        self._budget.check(at)

    def charge_none(self, first: Cursor, count: int, stride: int = 1) -> None:
        """Record that steps have no bad samples, which earlier attempts may have had; see ``FailureBudget``.

        Raises:
            BadSample: the budget is spent.
        """
        self._budget.charge_none(first, count, stride)

    async def charge(self, at: Cursor, failures: Sequence[Failure]) -> None:
        """Log a batch's bad samples, add them to the quarantine file if the policy says so, and charge the budget.

        Raises:
            BadSample: the budget is spent.
        """
        if failures and self._options.quarantine is not None and self._options.policy is BadSamples.QUARANTINE:
            await self._options.quarantine.note(at.epoch, failures)
        outcome = _OUTCOMES[self._options.policy]
        if failures and self._options.recent is not None:
            self._options.recent.note(self._options.owner, at.epoch, failures, outcome)
        self._budget.charge(at, failures)
        for one in failures[:_LOGGED_MAX]:
            _log.warning(f"bad sample {outcome}", url=one.url, key=one.key, field=one.field, reason=one.reason)
        if len(failures) > _LOGGED_MAX:
            _log.warning("more bad samples in the same batch", count=len(failures) - _LOGGED_MAX)

    async def applied(
        self, view: memoryview, layout: Layout, ready: BatchReady, failures: Sequence[Failure]
    ) -> BatchReady:
        """Return the batch with its bad rows removed or replaced by good ones.

        Args:
            view: the slot with its tables written.
            layout: the layout of the slot.
            ready: the batch with its bad rows.
            failures: the bad rows; at least one.

        Raises:
            BadSample: the policy replaces bad rows, but all rows are bad.
            ResourceExhausted: rows were replaced by larger ones, and the batch is now too large for memory.
        """
        good = np.ones(layout.rows, np.bool_)
        good[[one.row for one in failures]] = False
        count = layout.rows - int(good.sum())
        size_bytes = layout.size_bytes  # all bytes may be moved
        if self._options.policy is BadSamples.REPLACE:
            replaced = await off_loop(lambda: _replaced(view, layout, ready, good, failures[0]), size_bytes)
            return replace(replaced, bad_samples=count)
        left = await off_loop(lambda: drop_rows(view, layout, np.flatnonzero(~good)), size_bytes)
        again = np.frombuffer(ready.again, np.uint8)[good].tobytes() if ready.again else b""
        return replace(ready, rows=left.rows, regions=left.regions, bad_samples=count, again=again)


def failure_of(
    rows: BatchRows | RunRows,
    indexes: Sequence[ShardIndex],
    files: Sequence[ShardFile],
    recipe: Sequence[FieldRecipe],
    bad: BadRow,
    *,
    told: bool = False,
) -> Failure:
    """Return why a row is bad, and where its bytes lie.

    Args:
        rows: rows of the batch.
        indexes: indexes of the batch's shards.
        files: files of the batch's shards.
        recipe: all fields that may have failed.
        bad: the row.
        told: its reason needs no addition.
    """
    number, ordinal = int(rows.shard_no[bad.row]), int(rows.ordinal[bad.row])
    index, ref, reason = indexes[number], files[number].ref, bad.reason
    field = next((one for one in recipe if one.name == bad.field), None)
    sources = (bad.field,) if field is None else field.sources
    known = [index.fields.index(source) for source in sources if source in index.fields]
    places = {column: index.cell(column, ordinal) for column in range(len(index.fields))}
    held = [column for column in known if places[column][1] >= 0]
    absent = None if held else missing_reason(index, known, ordinal)
    if absent is not None:
        return Failure(ref.url, index.key(ordinal), bad.field, absent.reason, bad.row, ordinal, absent.at)
    if held and field is not None and not reads_as(index.encoding_of(held[0]), field.encoding) and not told:
        reason = f"expected encoding {field.encoding or 'a file'}, got {index.encoding_of(held[0]) or 'a file'}"
    if not held and not told and is_label(sources[0]):
        reason = f"the sample has no label: {unlabelled(sources[0])}"
    columns = held[:1] or [column for column, (_, size) in places.items() if size >= 0]
    offset = min((places[column][0] for column in columns), default=-1)
    plain = bool(held) and not index.encoding_of(held[0])
    size_bytes = places[held[0]][1] if plain else -1
    return Failure(ref.url, index.key(ordinal), bad.field, reason, bad.row, ordinal, offset, size_bytes, ref)


def _replaced(
    view: memoryview, layout: Layout, ready: BatchReady, good: NDArray[np.bool_], first: Failure
) -> BatchReady:
    if not good.any():
        raise BadSample(
            f"all {layout.rows} samples of a step are bad, so none can replace the others; "
            f"the first is {first.key!r}, field {first.field!r}: {first.reason}",
            object=first.url,
            hint="repair the sample, use larger batches, or set bad_samples='skip'",
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
