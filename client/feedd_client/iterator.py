"""One pass over a dataset: when slots are returned, when ranks stop, and which batches count as taken.

``Feeder`` below has the connection: it takes batches in order, and opens again if the daemon is lost.

Rules, each with the test that holds it:

- A slot returns once no part of its batch is held: ``test_a_slot_goes_back_once_nobody_holds_its_batch``.
- A trainer that holds all slots gets copies: ``test_a_list_of_batches_is_the_epoch``. Their bytes have a limit:
  ``test_too_many_copies_are_an_error``.
- A position counts only batches that the trainer took: ``test_resume_is_exact_at_every_step``,
  ``test_resume_of_single_samples_is_exact_inside_a_batch``.
- A lost stream costs no sample and repeats none: ``test_a_lost_stream_is_resumed_at_every_step``.
- A pass that was left begins its epoch again: ``test_a_break_starts_the_same_epoch_again_and_a_full_pass_the_next``.
- Ranks that join end together: ``test_ranks_of_unequal_length_end_together``, ``test_ranks_leave_passes``.
- A finalizer takes no lock: ``test_no_lock_is_taken_where_batches_die``.
- A fork leaves its parent's batches alone: ``test_fork_leaves_the_parents_batches_alone``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from feedd_client import lifetime
from feedd_client.agreement import AT_END
from feedd_client.batch import VALID, RunBatches, first_time, split_rows
from feedd_client.errors import FeedError
from feedd_client.session import Position
from feedd_client.values import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.agreement import Join
    from feedd_client.feeder import Feeder, Remains
    from feedd_client.leases import Arrived
    from feedd_client.session import Session
    from feedd_client.shm import Mapping
    from feedd_client.stats import LoaderStats
    from feedd_client.step_times import StepTimes

_log: Final = logging.getLogger("feedd_client")
inherited: list[object] = []  # the parent's objects, copied by a fork; kept so that the child never finalises them
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How one pass behaves.

    Attributes:
        copy: hand out private copies instead of views.
        join: decides where all ranks end together; None: this rank ends by itself.
        step_limit: number of steps after which to end, if the steps of all ranks are known in advance.
        skip_rows: samples of the first batch that were taken before (batch_size=None).
    """

    copy: bool = False
    join: Join | None = None
    step_limit: int | None = None
    skip_rows: int = 0

    @property
    def reserved_slots(self) -> int:
        """Slots that the trainer never holds: one per step of lookahead, and one that the daemon fills."""
        return 1 if self.join is None else 1 + self.join.lookahead


@dataclass(frozen=True, slots=True)
class PassHooks:
    """Callbacks from a pass to its dataset.

    Attributes:
        commit: the trainer took everything before this position.
        finish: the trainer saw the end of this epoch, after this number of steps of the rank.
        retire: the pass is over; gets the session if another pass can use it.
        leave: the pass was dropped; gets the remains to settle. Finalizers call it, so it takes no lock.
    """

    commit: Callable[[Position], None]
    finish: Callable[[int, int], None]
    retire: Callable[[Session | None], None]
    leave: Callable[[Remains], None]


class FeedIterator(Iterator[Item], Generic[Item]):
    """Base class of both kinds of pass. One thread uses a pass; any thread may call ``interrupt``.

    Attributes:
        auto_commit: report positions as items are handed out. A prefetching wrapper sets it to False and
            reports ``position`` itself when the trainer takes the item.
        prefetched_max: maximum number of items that a prefetching wrapper holds and the trainer has not taken.
        position: position of the first item that is not handed out yet.
        end: (epoch, steps of the rank) once the epoch is over.
    """

    def __init__(self, feeder: Feeder, plan: PassPlan, hooks: PassHooks, stats: LoaderStats) -> None:
        self.auto_commit = True
        self.prefetched_max = 0
        self.position = Position()
        self.end: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._feeder = feeder
        self._plan = plan
        self._hooks = hooks
        self._stats = stats
        self._reserved_slots = plan.reserved_slots
        self._began_s = time.perf_counter()
        self._taken_steps = 0
        self._trainer_steps: int | None = None
        self._first_step = feeder.next_position.step
        self._left_out_counted = False
        self._takes_runs = False
        self._run: RunBatches | None = None  # with batches that are not handed out yet
        self._closed = False
        lifetime.passes.add(self)

    def __iter__(self) -> FeedIterator[Item]:
        return self

    @property
    def seeding(self) -> tuple[int, int]:
        """The dataset's seed and this process's rank, which seed the transforms' random numbers."""
        return self._feeder.seeding

    @property
    def mapping(self) -> Mapping | None:
        """The arena of the latest batch; None if the batch travelled inline."""
        session = self._feeder.session
        return None if session is None else session.mapping

    @property
    def times(self) -> StepTimes:
        """Times of the trainer's loop. A wrapper that sets ``auto_commit`` to False records them itself."""
        return self._stats.step_times

    def took(self, position: Position) -> None:
        """Record, for a prefetching wrapper, that the trainer took everything before ``position``."""
        self._trainer_steps = position.step - self._first_step + (position.row > 0)

    def interrupt(self) -> None:
        """End the pass and make a blocked ``next`` in another thread raise."""
        self._leave()
        self._feeder.interrupt()

    def return_now(self) -> None:
        """Return the slots of dead batches immediately instead of with the next ``next``."""
        self._feeder.collect(at_once=True)

    def close(self) -> None:
        """End the pass. Batches stay valid while they are held. Calling it again has no effect."""
        if self._begin_to_close():
            self._hooks.retire(self._feeder.close())

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not sys.is_finalizing() and self._begin_to_close():
            remains = self._feeder.let_go()
            if remains is not None:
                remains.abandon()
                self._hooks.leave(remains)

    def _begin_to_close(self) -> bool:
        """Mark the pass as closed; return whether the caller must end it. Takes no lock."""
        if self._closed:
            return False
        self._closed = True
        self._run = None
        if self._pid != os.getpid():
            inherited.append(self._feeder)
            return False
        if self.end is None:
            self._leave()
        return True

    def _next_batch(self) -> tuple[Batch, int, int] | None:
        """Return the next batch, how many of its rows count, and its number of samples; None at the end."""
        if self._closed:
            return None
        if self._pid != os.getpid():
            raise FeedError("expected the process that began this pass, got a forked process", hint="call iter() again")
        asked_s, waited_s = time.perf_counter(), self._stats.wait_s
        try:
            self._feeder.collect()
            rows = self._agreed_rows()
            arrived = self._take() if rows != AT_END else None
            if arrived is None:
                self._end()
                return None
            session = self._feeder.session
            assert session is not None
            payload, at = self._feeder.hand_out(arrived, private=self._plan.copy, reserved=self._reserved_slots)
            message, places = arrived.message, (at, arrived.count, session.granted.batch_bytes)
            run = RunBatches(session.decoder, payload, message, *places)
            batch = run.take()
            self._run = run or None
            if self._feeder.uneven == "pad" or self._feeder.replaces:
                batch[VALID] = first_time(message)
        except BaseException:
            self.close()
            raise
        self.position = Position(self._feeder.epoch, arrived.step + self._feeder.stride, arrived.anchors)
        self._taken_steps += arrived.count
        self._note_last_step()
        if self.auto_commit:
            self._stats.step_times.took(asked_s, self._stats.wait_s - waited_s)
        if self._stats.time_to_first_batch_s is None:
            self._stats.time_to_first_batch_s = time.perf_counter() - self._began_s
        count = message.rows if rows is None else min(rows, message.rows)
        return batch, count, message.samples or count

    def _take(self) -> Arrived | None:
        return self._feeder.take(whole=self._takes_runs, reserved=self._reserved_slots)

    def _note_last_step(self) -> None:
        known = self._feeder.known_steps
        if known is not None and self.position.step >= known:  # a loop over len() never asks beyond the last step
            self._count_left_out()

    def _agreed_rows(self) -> int | None:
        """Return the rows that every rank has at this step, ``AT_END`` to stop, or None if ranks do not join."""
        limit, join = self._plan.step_limit, self._plan.join
        if limit is not None and self._taken_steps >= limit:
            return AT_END
        if join is None:
            return None
        for _ in range(join.to_post):
            join.post(self._feeder.next_rows(join.lookahead + 1 - join.to_post))
        return join.settle()

    def _leave(self) -> None:
        """Tell the other ranks that this rank leaves the pass."""
        join = self._plan.join
        if join is not None:
            steps = self._trainer_steps if self.prefetched_max else self._taken_steps
            join.leave((steps or 0) + self.prefetched_max)

    def _end(self) -> None:
        epoch = self._feeder.epoch
        left_count = self._leftover_count()
        if left_count:
            self._stats.leftover_batches += left_count
            _log.warning(
                "epoch %d ended after %d steps on all ranks; at least %d batches of this rank were left out",
                epoch,
                self._taken_steps,
                left_count,
            )
        self._count_left_out()
        ended = self._feeder.ended
        common = self._plan.join is not None or self._plan.step_limit is not None
        self.end = (epoch, self._feeder.next_position.step if common or ended is None else ended.steps)
        self.close()
        if self.auto_commit:
            self._hooks.finish(*self.end)

    def _count_left_out(self) -> None:
        """Count and log, once, the samples left out for equal steps, as the daemon reported them at open."""
        epoch, count = self._feeder.epoch, self._feeder.left_out_samples
        if self._feeder.uneven != "drop" or not count or self._left_out_counted:
            return
        self._left_out_counted = True
        self._stats.leftover_samples += count
        # less than a batch is rounding; more means that nodes or partitions differ in size, which the user can change
        much = count >= self._feeder.batch_size
        hint = "; sharding='sample' or uneven='pad' would leave out less" if much else ""
        level = logging.WARNING if much else logging.INFO
        _log.log(level, "epoch %d left out %d samples of this rank for equal steps%s", epoch, count, hint)

    def _leftover_count(self) -> int:
        if self._plan.join is None and self._plan.step_limit is None:
            return 0
        known = self._feeder.known_steps
        left = self._feeder.waiting_count
        return left if known is None else max(known - self._feeder.next_position.step, left)


class BatchIterator(FeedIterator[Batch]):
    """A pass that yields batches."""

    def __init__(self, feeder: Feeder, plan: PassPlan, hooks: PassHooks, stats: LoaderStats) -> None:
        super().__init__(feeder, plan, hooks, stats)
        singly = plan.copy or plan.join is not None or plan.step_limit is not None
        self._takes_runs = not (singly or feeder.uneven == "pad" or feeder.replaces)
        self._counts = (0, 0)  # rows and samples of the latest batch

    def __next__(self) -> Batch:
        if self._run is not None and self._pid == os.getpid():
            batch = self._next_of_run(self._run)
            rows, samples = self._counts
        else:
            taken = self._next_batch()
            if taken is None:
                raise StopIteration
            batch, rows, samples = taken
            self._counts = rows, samples
        stats = self._stats
        stats.batches += 1
        stats.samples += samples
        stats.rows += rows
        if self.auto_commit:
            self._hooks.commit(self.position)
        return batch

    def _next_of_run(self, run: RunBatches) -> Batch:
        if self.auto_commit:
            self._stats.step_times.took(time.perf_counter(), 0.0)
        try:
            self._feeder.collect()
            batch = run.take()
            epoch, step, anchors, _ = self.position
            self.position = Position(epoch, step + self._feeder.stride, anchors)
            if not run:
                self._run = None
                self._note_last_step()
        except BaseException:
            self.close()
            raise
        return batch


class SampleIterator(FeedIterator[Sample]):
    """A pass that yields single samples, which travel in batches."""

    def __init__(self, feeder: Feeder, plan: PassPlan, hooks: PassHooks, stats: LoaderStats) -> None:
        super().__init__(feeder, plan, hooks, stats)
        self._samples: Iterator[tuple[Position, dict[str, Any]]] = iter(())
        self._skip_rows = plan.skip_rows

    def __next__(self) -> Sample:
        while (found := next(self._samples, None)) is None:  # batches may be empty, thousands of them in a row
            self._next_samples()
        position, sample = found
        self.position = position
        self._stats.batches += 1
        self._stats.samples += 1
        self._stats.rows += 1
        if self.auto_commit:
            self._hooks.commit(position)
        return sample

    def _next_samples(self) -> None:
        """Split the next batch into samples.

        Raises:
            StopIteration: there is no next batch.
        """
        self._samples = iter(())  # drops the last references to the previous slot, so that it is returned
        before = self._feeder.next_position
        taken = self._next_batch()
        if taken is None:
            raise StopIteration
        batch, rows, _ = taken
        skip, self._skip_rows = self._skip_rows, 0
        after = self.position
        inside = [before._replace(row=row + 1) for row in range(rows - 1)]
        singles = split_rows(batch, rows)
        positions = [*inside, after] if rows else []
        self._samples = iter(list(zip(positions, singles, strict=True))[skip:])
