"""One pass over a dataset: when slots go back, when ranks stop, what counts as taken."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from feedd_client import lifetime
from feedd_client.agreement import AT_END
from feedd_client.batch import VALID, first_time, split_rows
from feedd_client.errors import FeedError
from feedd_client.session import Position
from feedd_client.values import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.agreement import Join
    from feedd_client.feeder import Feeder, Remains
    from feedd_client.session import Session
    from feedd_client.shm import Mapping
    from feedd_client.stats import LoaderStats

_log: Final = logging.getLogger("feedd_client")
inherited: list[object] = []  # what a fork copied: never finalised in the child, because it is the parent's
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How one pass behaves.

    Attributes:
        copy: hand out private copies instead of views.
        join: settles the common end of all ranks; None: this rank ends by itself.
        step_limit: steps after which to end, where all ranks' steps are known ahead.
        skip_rows: samples of the first batch that were taken before (batch_size=None).
    """

    copy: bool = False
    join: Join | None = None
    step_limit: int | None = None
    skip_rows: int = 0

    @property
    def reserved_slots(self) -> int:
        """Slots that are never the trainer's: where batches are looked at ahead of their turn, and one to go on."""
        return 1 if self.join is None else 1 + self.join.lookahead


@dataclass(frozen=True, slots=True)
class PassHooks:
    """What a pass tells its dataset.

    Attributes:
        commit: the trainer took everything before this position.
        finish: the trainer saw the end of this epoch, after that many steps of the rank.
        retire: the pass is over; the session, if it can serve another.
        leave: the pass was dropped; what it left is to be settled. Called by finalizers: takes no lock.
    """

    commit: Callable[[Position], None]
    finish: Callable[[int, int], None]
    retire: Callable[[Session | None], None]
    leave: Callable[[Remains], None]


class FeedIterator(Iterator[Item], Generic[Item]):
    """Base of both kinds of pass. Used by one thread; ``interrupt`` by any.

    Attributes:
        auto_commit: report positions as items are handed out. A prefetching wrapper sets it to False and
            reports ``position`` itself when the trainer takes the item.
        ahead: most items a prefetching wrapper may hold that the trainer has not taken.
        position: first thing not handed out yet.
        end: (epoch, steps of the rank) once the epoch is over.
    """

    def __init__(self, feeder: Feeder, plan: PassPlan, hooks: PassHooks, stats: LoaderStats) -> None:
        self.auto_commit = True
        self.ahead = 0
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
        self._closed = False
        lifetime.passes.add(self)

    def __iter__(self) -> FeedIterator[Item]:
        return self

    @property
    def seeding(self) -> tuple[int, int]:
        """The dataset's seed and the rank of this process, from which the numbers of transforms are drawn."""
        return self._feeder.seeding

    @property
    def mapping(self) -> Mapping | None:
        """The arena the latest batch lies in; None when it travelled inline."""
        session = self._feeder.session
        return None if session is None else session.mapping

    def took(self, position: Position) -> None:
        """Take note, from a prefetching wrapper, that the trainer took everything before ``position``."""
        self._trainer_steps = position.step - self._first_step + (position.row > 0)

    def interrupt(self) -> None:
        """Make a blocked ``next`` in another thread raise; the pass is over."""
        self._leave()
        self._feeder.interrupt()

    def return_now(self) -> None:
        """Return the slots of batches nobody holds any more at once, instead of with the next ``next``."""
        self._feeder.collect(at_once=True)

    def close(self) -> None:
        """End the pass. Batches stay valid for as long as somebody holds them; idempotent."""
        if self._begin_to_close():
            self._hooks.retire(self._feeder.close())

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not sys.is_finalizing() and self._begin_to_close():
            remains = self._feeder.let_go()
            if remains is not None:
                remains.abandon()
                self._hooks.leave(remains)

    def _begin_to_close(self) -> bool:
        """Whether the pass is to be ended now; takes no lock."""
        if self._closed:
            return False
        self._closed = True
        if self._pid != os.getpid():
            inherited.append(self._feeder)
            return False
        if self.end is None:
            self._leave()
        return True

    def _next_batch(self) -> tuple[Batch, int, int] | None:
        """Return the next batch, how many of its rows count, and how many samples are in it; None at the end."""
        if self._closed:
            return None
        if self._pid != os.getpid():
            raise FeedError("expected the process that began this pass, got a fork of it", hint="call iter() again")
        try:
            self._feeder.collect()
            rows = self._agreed_rows()
            lease = self._feeder.take() if rows != AT_END else None
            if lease is None:
                self._end()
                return None
            message = lease.message
            session = self._feeder.session
            assert session is not None
            payload = self._feeder.hand_out(lease, private=self._plan.copy, reserved=self._reserved_slots)
            batch = session.decoder.decode(payload, message.regions, message.rows)
            if self._feeder.uneven == "pad" or self._feeder.replaces:
                batch[VALID] = first_time(message)
        except BaseException:
            self.close()
            raise
        self.position = self._feeder.next_position
        self._taken_steps += 1
        known = self._feeder.known_steps
        if known is not None and self.position.step >= known:  # who goes by len() asks for nothing more
            self._count_left_out()
        if self._stats.time_to_first_batch_s is None:
            self._stats.time_to_first_batch_s = time.perf_counter() - self._began_s
        count = message.rows if rows is None else min(rows, message.rows)
        return batch, count, message.samples or count

    def _agreed_rows(self) -> int | None:
        """Return the rows every rank has at this step, ``AT_END`` to stop, None where nobody asks."""
        limit, join = self._plan.step_limit, self._plan.join
        if limit is not None and self._taken_steps >= limit:
            return AT_END
        if join is None:
            return None
        for _ in range(join.to_post):
            join.post(self._feeder.rows_ahead(join.lookahead + 1 - join.to_post))
        return join.settle()

    def _leave(self) -> None:
        """Tell the other ranks that this one will not go on."""
        join = self._plan.join
        if join is not None:
            steps = self._trainer_steps if self.ahead else self._taken_steps
            join.leave((steps or 0) + self.ahead)

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
        """Take note, once, of what equal steps left out, which the daemon knew when it opened the session."""
        epoch, count = self._feeder.epoch, self._feeder.left_out_samples
        if self._feeder.uneven != "drop" or not count or self._left_out_counted:
            return
        self._left_out_counted = True
        self._stats.leftover_samples += count
        # less than a batch is rounding; more than that, nodes or partitions differ, which something can be done about
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
    """A pass in batches."""

    def __next__(self) -> Batch:
        taken = self._next_batch()
        if taken is None:
            raise StopIteration
        batch, rows, samples = taken
        stats = self._stats
        stats.batches += 1
        stats.samples += samples
        stats.rows += rows
        if self.auto_commit:
            self._hooks.commit(self.position)
        return batch


class SampleIterator(FeedIterator[Sample]):
    """A pass in single samples: they travel in batches, and are handed out one at a time."""

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
        """Take the next batch apart.

        Raises:
            StopIteration: there is none.
        """
        self._samples = iter(())  # so that a slot nobody looks at any more goes back
        before = self._feeder.next_position
        taken = self._next_batch()
        if taken is None:
            raise StopIteration
        batch, rows, _ = taken
        skip, self._skip_rows = self._skip_rows, 0
        after = self.position
        inside = [replace(before, row=row + 1) for row in range(rows - 1)]
        singles = split_rows(batch, rows)
        positions = [*inside, after] if rows else []
        self._samples = iter(list(zip(positions, singles, strict=True))[skip:])
