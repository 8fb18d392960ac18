"""One consumer's opened dataset: makes the batches of steps in slots.

The way of a call: ``Session.produce`` plans its steps and announces their windows to the cache. It waits for earlier
calls if it would have to fetch shards of a later window. Then ``own_batches.Batches.make`` fills one slot.

Rules, each with the test that holds it:

- Over all ranks each sample comes once per epoch: ``test_every_sample_once_over_ranks_and_epochs``.
- A cursor is enough to go on: ``test_resume_on_a_fresh_daemon_needs_only_what_is_left``.
- A call that must fetch waits until earlier calls have their shards:
  ``test_a_call_waits_for_the_shards_of_all_earlier_ones``.
- Batches before one that fails arrive: ``test_a_bad_shard_is_every_production_s_error``.
- A cancelled call holds no pin: ``test_cancelled_productions_hold_nothing``.
- An object that changed ends the session, and its listing is forgotten:
  ``test_a_replaced_object_ends_the_run_and_its_listing``.
- The next epoch is decoded in advance only behind the last batch: ``test_behind_the_last_of_the_epoch``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.dataset.pack_layout import is_pack
from feedd.errors import FeeddError, NotFound, ObjectChanged
from feedd.notices import NoticeKind, notices_of
from feedd.sessions.prefetch_driver import RunningCalls
from feedd.values import Cursor, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from feedd.catalog.dataset_catalog import DatasetCatalog
    from feedd.catalog.late_fields import LateFields
    from feedd.catalog.stages import Stages
    from feedd.dataset.listing import DatasetView
    from feedd.ordering.batch_plan import RunPlan
    from feedd.ordering.mixed_reader import AnyReader
    from feedd.protocols import Slots
    from feedd.sessions.own_batches import Batches
    from feedd.sessions.prefetch_driver import PrefetchDriver
    from feedd.values import Produced, SessionInfo, SlotRef


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts of a session.

    Attributes:
        info: the answer to Open.
        catalog: has the indexes of the listing's shards.
        view: the shards of the session.
        reader: plans the batches.
        prefetch_driver: announces future reads to the cache.
        batches: makes the batches in slots.
        leave_windows: gives up the sorted windows that the session shares with other ranks.
        late: fields that were found after the session opened; its user is told about them.
        stride: steps from one batch of the session's consumer to the next.
    """

    info: SessionInfo
    catalog: DatasetCatalog
    view: DatasetView
    reader: AnyReader
    prefetch_driver: PrefetchDriver
    batches: Batches
    leave_windows: Callable[[], None] = lambda: None
    late: LateFields | None = None
    stride: int = 1


class Session:
    """Implements ``FeedSession``. Batches are independent: any number may be in production."""

    def __init__(self, parts: SessionParts, stages: Stages) -> None:
        self._parts = parts
        self._stages = stages
        self._calls = RunningCalls(parts.prefetch_driver)
        self._fetching: set[object] = set()  # calls that wait for their shards
        self._furthest = Cursor(-1)
        self._ended_epoch = -1

    @property
    def info(self) -> SessionInfo:
        """The answer to Open. Its notices grow while shards are read."""
        late = self._parts.late
        if late is not None and late.refresh():
            info = self._parts.info
            amounts = {notice.kind: notice.amount for notice in info.notices}
            notices = notices_of({**amounts, NoticeKind.LATE_FIELDS: late.amount})
            self._parts = replace(self._parts, info=replace(info, notices=notices))
        return self._parts.info

    @property
    def slots(self) -> Slots:
        """The slots that hold the session's batches."""
        return self._parts.batches.slots

    def client_mapping(self) -> AbstractContextManager[int]:
        """Lend the memfd of the arena to one client until the context ends; its memory counts until then."""
        return self._parts.batches.client_mapping()

    @property
    def stage(self) -> str:
        """Return ``fetching`` or ``decoding``: the stage that running calls of ``produce`` are in."""
        return "decoding" if len(self._calls) > len(self._fetching) else "fetching"

    def retain_leased(self) -> None:
        """Keep leased slots out of use, because the client may go on reading them."""
        self._parts.batches.retain_leased()

    def steps(self, epoch: int) -> int | None:
        """Return the rank's steps in an epoch, or None if they were unknown when the session opened."""
        return None if self._parts.info.steps is None else self._parts.reader.steps(epoch)

    async def produce(self, at: Cursor, count: int = 1) -> Produced | EpochEnd:
        """Make the batches of ``count`` steps from ``at`` on in one slot; fewer if the epoch ends or a batch fails.

        Raises, if the first batch cannot be made:
            ObjectChanged: a shard is no longer the version that was listed.
            BadShard, BadSample: the data does not match the recipe, and the failure budget is spent.
            CacheTooSmall: the shards of the batches do not fit into the cache together.
            NotFound, PermissionDenied, StoreUnavailable: raised by the store.
        """
        began_s, call = self._stages.clock.monotonic_s(), object()
        self._start(at)  # detects a new stream, so it runs before this call is counted
        self._calls.begin(call)
        self._fetching.add(call)
        try:
            plans, end = await self._draw(call, at, count)
            if not plans:
                assert end is not None, "no batch, and no reason"
                if isinstance(end, EpochEnd):
                    return end
                raise end
            await self._wait_for_earlier(call, plans)
            made = await self._parts.batches.make(plans, partial(self._decoding, call, whole=len(plans) == 1))
        except (ObjectChanged, NotFound):
            self._parts.catalog.forget(self._parts.view.listing)  # so that the next session lists again
            raise
        finally:
            self._ended(call)
        if made.failure is None and isinstance(end, FeeddError):
            made = replace(made, failure=end)
        if isinstance(made.failure, ObjectChanged | NotFound):
            self._parts.catalog.forget(self._parts.view.listing)
        took_s = (self._stages.clock.monotonic_s() - began_s) / made.batch_count
        self._stages.recorder.observe(metrics.PIPELINE_BATCH_SECONDS, took_s, made.batch_count)
        return made

    async def _draw(self, call: object, at: Cursor, count: int) -> tuple[list[RunPlan], EpochEnd | FeeddError | None]:
        """Plan the batches of steps; they end before the end of the epoch, or before a step that cannot be planned."""
        parts, stride = self._parts, self._parts.stride
        plans: list[RunPlan] = []
        step, end = at.step, at.step + count * stride
        while step < end:
            here = Cursor(at.epoch, step, at.anchors)
            self._reach(here)
            try:
                found = await parts.catalog.draw(parts.view, parts.reader, here, (end - step) // stride, stride)
                if isinstance(found, EpochEnd):
                    parts.batches.check_failures(here)
                    self._count_end(at.epoch)
                    return plans, found
            except FeeddError as error:
                return plans, error
            plans.append(found)
            step += len(found) * stride
            self._reach(Cursor(at.epoch, step - stride))
            parts.prefetch_driver.advance(here, found.first_window, found.last_window, call)
        return plans, None

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was produced."""
        self._parts.batches.release(slot)

    async def close(self) -> None:
        """Cancel prefetches, detach the arena from the workers and free it."""
        await self._parts.batches.close()
        self._parts.prefetch_driver.close()
        self._parts.leave_windows()
        await self._parts.prefetch_driver.ended()  # last, because a worker may take its grace period

    def _start(self, at: Cursor) -> None:
        """Restart prefetching if a new stream begins at another step than the last one reached."""
        furthest = self._furthest
        if furthest.epoch < 0 and self._parts.reader.window(at):
            self._parts.prefetch_driver.skip_to(at)
        elif at.epoch == furthest.epoch and at.step <= furthest.step and not self._calls:
            self._parts.prefetch_driver.enter(at)  # steps of a stream only ascend, so this is a new stream
            self._furthest, self._ended_epoch = at, -1
        self._reach(at)

    def _reach(self, at: Cursor) -> None:
        furthest = self._furthest
        if at.epoch != furthest.epoch or at.step > furthest.step:
            self._furthest = at

    async def _wait_for_earlier(self, call: object, plans: Sequence[RunPlan]) -> None:
        """Wait for earlier calls; see ``RunningCalls.wait_for_earlier``."""
        parts, cache = self._parts, self._stages.cache

        def lacks_shards() -> bool:
            shards = {shard for plan in plans for shard in plan.shards}
            refs = map(parts.view.refs.__getitem__, shards)
            return any(not (ref.conversion or is_pack(ref) or cache.knows(ref)) for ref in refs)

        await self._calls.wait_for_earlier(call, max(plan.last_window for plan in plans), lacks_shards)

    def _ended(self, call: object) -> None:
        """Forget a call that has ended. Once the first has, later shards may be fetched."""
        self._calls.end(call)
        self._decoding(call)
        self._parts.prefetch_driver.finished(call)
        self._parts.prefetch_driver.widen()

    def _decoding(self, call: object, *, whole: bool = False) -> None:
        """Mark a call as decoding. After the last batch of an epoch, start to decode the next epoch's batches.

        A session's batches are decoded in the order of requests, so batches decoded in advance delay no other batch.

        Args:
            call: the call.
            whole: the shards of all its batches have arrived, and are pinned.
        """
        if whole:
            self._calls.pinned(call)
        self._fetching.discard(call)
        ended = self._ended_epoch
        if not self._fetching and 0 <= ended == self._furthest.epoch:
            self._parts.batches.epoch_ended(ended)

    def _count_end(self, epoch: int) -> None:
        """Count an epoch once, even if several planned steps lie beyond its end."""
        if epoch != self._ended_epoch:
            self._ended_epoch = epoch
            self._stages.recorder.count(metrics.PIPELINE_EPOCHS)
            self._stages.recorder.count(metrics.PIPELINE_LEFT_OUT, self._parts.info.left_out or 0)


def session_of(parts: SessionParts, stages: Stages, rank: int) -> Session:
    """Return the session of a rank; one that notes the way of its batches if tracing is on."""
    if stages.traces is None:
        return Session(parts, stages)
    from feedd.sessions.traced_session import TracedSession  # noqa: PLC0415 - only while tracing is on

    return TracedSession(parts, stages, stages.traces, rank)
