"""What is done about the bad samples of a batch: held against the budget, named, left out or replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from feedd.batching.failure_budget import FailureBudget
from feedd.batching.row_repeats import repeat_in_place, repeat_into, repeated, stand_ins
from feedd.batching.slot_layout import drop_rows
from feedd.errors import BadSample, ResourceExhausted
from feedd.flow.tasks import off_loop
from feedd.recipe.bad_sample_policy import BadSamples
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.batching.quarantine import Quarantine
    from feedd.batching.slot_layout import Layout
    from feedd.recipe.bad_sample_policy import Failure
    from feedd.values import BatchReady, Cursor

OVERSIZE_MAX_BYTES = 2 << 30
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
