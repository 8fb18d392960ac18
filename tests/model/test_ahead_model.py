"""A stream over batches decoded in advance, machine, driver and session together: no slot has two owners or is lost."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.clock import SystemClock
from feedd.errors import BadSample
from feedd.flow.arena import Arena
from feedd.observe.recorder import NullRecorder
from feedd.ordering.batch_plan import RunPlan
from feedd.serve.served_session import ServedSession
from feedd.serve.server_options import ServeOptions
from feedd.serve.stream import StreamCall
from feedd.sessions.next_epoch_prefetch import NextEpochPrefetch
from feedd.sessions.own_batches import BatchDecoder, OwnBatches
from feedd.sessions.session import Session, SessionParts
from feedd.values import BatchReady, Cursor, EpochEnd, Region, SessionInfo, SlotRef
from feedd.wire import feedd_pb2 as pb
from tests.budget import budget
from tests.fakes.specs import open_spec

if TYPE_CHECKING:
    from feedd.ordering.batch_plan import RunRows

SLOTS = 3
STEPS = 4
_SPEC = open_spec((), 1)


class _Pins:
    files = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...


class _Decoder:
    """What is under a session: steps of two to a window, and batches that are written when the test says so."""

    batch_bytes = 256

    def __init__(self, run_batches: int) -> None:
        self.misjudged_count = 0
        self.run_batches = run_batches
        self.writing: dict[int, asyncio.Future[bool]] = {}
        self.lying: dict[tuple[int, int], tuple[int, int]] = {}  # by slot and place, what was written last
        self.kept: set[int] = set()  # slots that a client reads
        self.early: set[int] = set()  # slots being written that nobody asked for
        self.inflight = SimpleNamespace(ticket=lambda: 0, read=self.read, withdraw=self.withdraw)
        self.stages: Any = SimpleNamespace(
            inflight=self.inflight, cache=self, recorder=NullRecorder(), clock=SystemClock()
        )

    def window(self, _at: Cursor) -> int:
        return 0

    async def draw(self, _listing: object, _reader: object, at: Cursor, count: int, _stride: int) -> RunPlan | EpochEnd:
        if at.step >= STEPS:
            return EpochEnd(at.epoch, STEPS)
        window = at.step // 2
        row = np.zeros(min(count, 2 * window + 2 - at.step), np.int64)
        return RunPlan(at, row, row, lambda: row.astype(np.uint64), window, window, count=len(row))

    async def indexes(self, _listing: object, _shards: object) -> list[object]:
        return []

    async def acquire(self, _refs: object) -> _Pins:
        return _Pins()

    async def read(self, _refs: object, _group: object, read: Any, _owner: object, _turn: int) -> Any:
        return await read(())

    async def withdraw(self, _owner: object) -> None: ...

    async def fill(
        self, run: RunRows, slot: SlotRef, _indexes: object, _files: object, *, early: bool, first: int
    ) -> list[tuple[BatchReady, int]]:
        assert first + len(run.plan) <= self.run_batches
        places = enumerate(run.plan.batches(), first)
        return [(await self._write(plan.cursor, slot, place, early=early), 1) for place, plan in places]

    async def _write(self, at: Cursor, slot: SlotRef, place: int, *, early: bool) -> BatchReady:
        assert slot.index not in self.writing, "two write to a slot"
        assert slot.index not in self.kept, "a slot is written to that a client reads"
        done = self.writing[slot.index] = asyncio.get_running_loop().create_future()
        if early:
            self.early.add(slot.index)
        try:
            good = await done
        except asyncio.CancelledError:
            for _ in range(5):  # as workers take a moment to stop
                await asyncio.sleep(0)
            raise
        finally:
            del self.writing[slot.index]
            self.early.discard(slot.index)
            self.lying[slot.index, place] = at.epoch, at.step
        if not good:
            raise BadSample("expected a sample, got none", stage="decode")
        return BatchReady(Cursor(at.epoch, at.step, ((0, 0),)), 1, (Region(0, 1),), 1)

    def check_failures(self, _at: Cursor) -> None: ...

    def advance(self, *_where: object) -> None: ...

    enter = skip_to = widen = finished = advance

    reads_only = staticmethod(lambda _window: True)

    def close(self) -> None: ...

    async def ended(self) -> None: ...


class _Client:
    """The other end of one stream call: what it is sent, and what it says."""

    def __init__(self, decoder: _Decoder, leased: set[SlotRef], at: Cursor) -> None:
        self.decoder = decoder
        self.leased = leased
        self.at = at
        self.said: asyncio.Queue[pb.StreamRequest] = asyncio.Queue()
        self.over = False

    async def read(self) -> pb.StreamRequest:
        return await self.said.get()

    async def write(self, data: bytes) -> None:
        message = pb.StreamResponse.FromString(data)
        self.over |= message.HasField("end") or message.HasField("error")
        for batch in message.batches:
            slot = SlotRef(batch.slot, batch.generation)
            first = batch.cursor
            steps = [(first.epoch, first.step + number) for number in range(1 + batch.alike)]
            steps += [(one.cursor.epoch, one.cursor.step) for one in batch.more]
            for place, step in enumerate(steps):
                due = self.at.epoch, self.at.step
                assert step == due, "out of order"
                assert self.decoder.lying[slot.index, place] == due, "another batch lies there"
                self.at = Cursor(self.at.epoch, self.at.step + 1)
            assert slot.index not in self.decoder.writing, "it was handed out while it is written to"
            assert slot.index not in self.decoder.kept, "a slot was handed out twice"
            self.decoder.kept.add(slot.index)
            self.leased.add(slot)


class _Rig:
    """A session as the server hosts it, over a decoder that the test holds back, and a client that streams from it."""

    def __init__(self, tasks: asyncio.TaskGroup, run_batches: int) -> None:
        self.tasks = tasks
        self.arena = Arena(SLOTS, mmap.PAGESIZE)
        self.decoder = _Decoder(run_batches)
        below: Any = self.decoder  # in the place of catalog, reader, assembler and prefetch driver
        self.leased: set[SlotRef] = set()
        listing: Any = SimpleNamespace(refs=[None])
        batch_decoder = BatchDecoder(self.decoder.stages, below, listing, below)
        ahead = NextEpochPrefetch(self.arena, batch_decoder, lambda: below, tasks)
        own = OwnBatches(self.arena, batch_decoder, ahead)
        info = SessionInfo((), bytes(16), 1, 1, 0, run_batches=run_batches, batch_bytes=256)
        parts = SessionParts(info, below, listing, below, below, own)
        self.session = Session(parts, self.decoder.stages)
        self.hosted = ServedSession(self.session, _SPEC, NullRecorder(), SystemClock())
        self.hosted.machine.lifeline_came()
        self.client: _Client | None = None

    async def start(self, at: Cursor) -> None:
        await self.stop()
        self.client = _Client(self.decoder, self.leased, at)
        self.hosted.machine.start(at)
        context: Any = self.client
        assert self.hosted.machine.stream is not None
        self.hosted.call = StreamCall(self.hosted, self.hosted.machine.stream, context, ServeOptions(linger_s=60))
        self.tasks.create_task(self.hosted.call.run(pb.StreamRequest(start=pb.StreamStart())))

    async def stop(self) -> None:
        if self.hosted.call is not None:
            await asyncio.sleep(0)  # it runs
            self.hosted.call.stop()
            await self.hosted.call.ended.wait()
            self.hosted.call = None

    def say(self, **what: Any) -> None:
        if self.client is not None:
            self.client.said.put_nowait(pb.StreamRequest(**what))

    def release(self, number: int) -> None:
        slots = sorted(self.leased, key=str)
        if self.hosted.call is not None and number < len(slots):
            slot = slots[number]
            self.leased.remove(slot)
            self.decoder.kept.remove(slot.index)
            self.say(releases=[pb.Release(slot=slot.index, generation=slot.generation)])

    def write(self, index: int, good: bool) -> None:
        done = self.decoder.writing.get(index)
        if done is not None and not done.done():
            done.set_result(good)

    def check(self) -> None:
        machine = self.hosted.machine
        assert machine.leases.leased_count >= len(self.leased)
        assert machine.taken_count <= SLOTS

    async def end(self) -> None:
        """End the session; nothing is left."""
        await self.stop()
        self.decoder.kept.clear()
        self.hosted.carry_out(self.hosted.machine.close())
        assert self.hosted.machine.taken_count == 0
        await self.session.close()
        assert not self.decoder.writing
        assert self.arena.taken_count == 0


_run_batches = st.integers(1, STEPS)
_steps = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 2), st.integers(0, STEPS)),
    st.tuples(st.just("credits"), st.integers(1, STEPS), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, SLOTS - 1), st.just(0)),
    st.tuples(st.just("write"), st.integers(0, SLOTS - 1), st.sampled_from([1, 1, 1, 0])),
    st.tuples(st.just("turn"), st.integers(1, 8), st.just(0)),
)


@settings(max_examples=budget(300), deadline=None)
@given(st.lists(_steps, max_size=60), _run_batches)
def test_slots_have_one_owner(steps: list[tuple[str, int, int]], run_batches: int) -> None:
    """However a client starts, asks and gives back, it gets its batches in order, each in a slot nobody writes to."""
    asyncio.run(_run(steps, run_batches))


async def _run(steps: list[tuple[str, int, int]], run_batches: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig = _Rig(tasks, run_batches)
        for what, first, second in steps:
            if what == "start":
                await rig.start(Cursor(first, second))
            elif what == "credits":
                rig.say(credits=first)
            elif what == "release":
                rig.release(first)
            elif what == "write":
                rig.write(first, bool(second))
            else:
                for _ in range(first):
                    await asyncio.sleep(0)
                    rig.check()
        await rig.end()


@dataclass(frozen=True)
class _Visit:
    """A stream of one epoch that a client may leave before the end.

    Attributes:
        onward: by so many epochs beyond the visit before.
        step: where it begins.
        rounds: after so many the client goes.
        turns: of the event loop, between what the client and the decoder do.
        early: batches that nobody asked for are decoded, too; else they stay half written.
        held: leases that the client keeps.
    """

    onward: int
    step: int
    rounds: int
    turns: int
    early: bool
    held: int


_visits = st.lists(
    st.builds(
        _Visit,
        st.sampled_from([0, 1, 1]),
        st.sampled_from([0, 0, 0, 1, STEPS - 1, STEPS]),
        st.integers(0, 40),
        st.integers(1, 6),
        st.booleans(),
        st.integers(0, SLOTS - 1),
    ),
    max_size=6,
)


@settings(max_examples=budget(200), deadline=None)
@given(_visits, _run_batches, st.integers(1, 6))
def test_an_epoch_is_streamed_whole_whatever_was_before(visits: list[_Visit], run_batches: int, turns: int) -> None:
    """Streams that go in the middle, and batches half decoded in advance, keep nothing from those that come."""
    asyncio.run(_visited([*visits, _Visit(1, 0, 1000, turns, early=True, held=0)], run_batches))


async def _visited(visits: list[_Visit], run_batches: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        rig, epoch = _Rig(tasks, run_batches), 0
        for visit in visits:
            epoch += visit.onward
            await rig.start(Cursor(epoch, visit.step))
            assert rig.client is not None
            for count in range(visit.rounds):
                rig.say(credits=1)
                for _ in range(visit.turns):
                    await asyncio.sleep(0)
                if rig.client.over:
                    break
                if visit.early or count % SLOTS not in rig.decoder.early:
                    rig.write(count % SLOTS, good=True)
                if len(rig.leased) > visit.held:
                    rig.release(0)
        assert rig.client is not None
        assert rig.client.over, "the epoch does not end"
        assert rig.client.at == Cursor(epoch, STEPS)
        await rig.end()
