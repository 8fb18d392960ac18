from __future__ import annotations

import mmap
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from feedd.errors import BadShard, Draining
from feedd.flow.arena import Arena
from feedd.serve.instructions import Finish, Free, Produce, Reclaim, Send, SendEnd, SendError
from feedd.serve.instructions import Instruction as _Instruction
from feedd.serve.session_machine import SessionMachine, StreamMachine
from feedd.values import BatchReady, Cursor, EpochEnd, Produced, SlotRef
from tests.budget import budget

SLOTS = 3
STEPS = 12


class SessionModel(RuleBasedStateMachine):
    """The session machine, driven as a stream driver does, against what a client and a few counters know."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(SLOTS, mmap.PAGESIZE)
        self.live: StreamMachine | None = None
        self.making: dict[Cursor, StreamMachine] = {}
        self.holding: set[SlotRef] = set()  # slots with a batch that is not leased
        self.outbox: deque[_Instruction] = deque()
        self.leased: set[SlotRef] = set()
        self.released: list[SlotRef] = []
        self.attached = False

    @initialize(count=st.integers(1, 3), mapped=st.sampled_from([True, True, False]), data=st.data())
    def begin(self, count: int, mapped: bool, data: st.DataObject) -> None:
        self.count, self.index = count, data.draw(st.integers(0, count - 1))
        self.machine = SessionMachine(SLOTS, count, self.index)
        if mapped:
            self.lifeline_comes()

    def teardown(self) -> None:
        """Whatever happened, a session that ends has every slot back."""
        if hasattr(self, "machine"):
            self._end_stream()
            self._apply(self.machine.close())
            assert self.arena.taken_count == self.machine.taken_count == 0
        self.arena.close()

    # ------------------------------------------------------------------ the driver's part

    def _apply(self, instructions: list[_Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Produce):
                assert self.live is not None
                self.making[instruction.at] = self.live
                assert instruction.at.step == self.next_step, "a step was left out or planned twice"
                self.next_step += self.count
                self.planned += 1
            elif isinstance(instruction, Reclaim):
                assert set(instruction.slots) <= self.leased
                self.leased -= set(instruction.slots)
                for slot in instruction.slots:
                    assert self.arena.give_back(slot), "freed twice"
            elif isinstance(instruction, Free):
                assert instruction.slot not in self.leased, "the client may be reading it"
                assert self.arena.give_back(instruction.slot), "freed twice"
                self.holding.discard(instruction.slot)
            else:
                is_draining = isinstance(instruction, SendError) and isinstance(instruction.error, Draining)
                assert self.drained or not is_draining, "the stream says that the daemon ends, and it does not"
                self.outbox.append(instruction)

    def _end_stream(self) -> None:
        if self.live is None:
            return
        self._apply(self.live.gone())
        for at, stream in list(self.making.items()):
            assert not stream.produced(at, None)
            del self.making[at]
        self.machine.stream_ended()
        self.live = None
        self.outbox.clear()

    # ------------------------------------------------------------------ rules

    @precondition(lambda self: self.live is None)
    @rule(
        step=st.integers(0, STEPS + 2),
        epoch=st.integers(0, 3),
        inline_only=st.booleans(),
        say_held=st.booleans(),
        data=st.data(),
    )
    def start(self, step: int, epoch: int, inline_only: bool, say_held: bool, data: st.DataObject) -> None:
        held = None
        if say_held:
            kept = data.draw(st.sets(st.sampled_from(sorted(self.leased, key=str)))) if self.leased else set()
            held = [*kept, SlotRef(9, 9)]
        self.next_step = step + (self.index - step) % self.count
        self.next_sent = self.next_step
        self.next_seq = self.planned = self.credits = self.samples = 0
        self.epoch, self.over, self.half = epoch, False, False
        self.drained = self.told_to_end = False
        before = set(self.leased)
        self._apply(self.machine.start(Cursor(epoch, step), inline_only=inline_only, held=held))
        self.live = self.machine.stream
        assert self.live is not None
        assert self.live.leasing == (self.attached and not inline_only)
        assert self.leased == (before if held is None else before & set(held))

    @precondition(lambda self: self.live is not None)
    @rule(count=st.integers(1, 4))
    def give_credits(self, count: int) -> None:
        assert self.live is not None
        self.credits += count
        self._apply(self.live.credits(count))

    @precondition(lambda self: self.making)
    @rule(data=st.data(), fault=st.integers(0, 9))
    def end_a_production(self, data: st.DataObject, fault: int) -> None:
        at = data.draw(st.sampled_from(sorted(self.making, key=str)))
        stream = self.making.pop(at)
        if at.step >= STEPS:
            self._apply(stream.produced(at, EpochEnd(at.epoch, STEPS)))
        elif fault == 0:
            self._apply(stream.produced(at, BadShard(f"step {at.step}")))
        else:
            slot = self.arena.take()
            assert slot is not None, "more was planned than there are slots"
            self.holding.add(slot)
            over = memoryview(bytes(1)) if fault == 1 else None
            batch = BatchReady(Cursor(at.epoch, at.step, ((at.step, 0),)), 2, (), 1, oversize=over)
            self._apply(stream.produced(at, Produced(batch, slot)))

    @precondition(lambda self: self.outbox)
    @rule()
    def write_next(self) -> None:
        assert self.live is not None
        item = self.outbox.popleft()
        if isinstance(item, Send):
            assert not self.over, "a batch after the last message"
            assert item.seq == self.next_seq
            assert (item.produced.batch.cursor.epoch, item.produced.batch.cursor.step) == (self.epoch, self.next_sent)
            assert self.next_seq < self.credits, "more batches than credits"
            self.next_seq += 1
            self.next_sent += self.count
            self.samples += item.produced.batch.rows
            held = self.live.leasing and item.produced.batch.oversize is None
            if held and self.attached:
                self.leased.add(item.produced.slot)
                self.holding.remove(item.produced.slot)
            self._apply(self.live.sent(item.seq, held=held))
        elif isinstance(item, SendEnd):
            assert self.next_sent >= STEPS, "the end before the last batch"
            assert item.samples == self.samples
            self.over = True
        elif isinstance(item, SendError):
            self.over = True
        else:
            assert isinstance(item, Finish)
            assert self.half or (self.over and self.told_to_end)
            assert not self.outbox
            self._end_stream()

    @precondition(lambda self: self.leased and self.live is not None)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        assert self.live is not None
        slot = data.draw(st.sampled_from(sorted(self.leased, key=str)))
        self.leased.remove(slot)
        self.released.append(slot)
        self._apply(self.live.releases([slot]))

    @precondition(lambda self: self.live is not None)
    @rule(data=st.data(), index=st.integers(0, 4), generation=st.integers(0, 9))
    def release_nonsense(self, data: st.DataObject, index: int, generation: int) -> None:
        assert self.live is not None
        wrong = [SlotRef(index, generation)] + ([data.draw(st.sampled_from(self.released))] if self.released else [])
        wrong += [SlotRef(slot.index, slot.generation - 1) for slot in self.leased]
        wrong = [slot for slot in wrong if slot not in self.leased]
        before = self.machine.leases.stale_count
        self._apply(self.live.releases(wrong))
        assert self.machine.leases.stale_count == before + len(wrong)

    @precondition(lambda self: self.live is not None)
    @rule(really=st.integers(0, 2))
    def half_close(self, really: int) -> None:
        if really:
            return
        assert self.live is not None
        self.half = True
        self._apply(self.live.half_closed())

    @precondition(lambda self: self.live is not None)
    @rule(really=st.integers(0, 2))
    def client_cancels(self, really: int) -> None:
        if really:
            return
        self._end_stream()

    @rule()
    def lifeline_comes(self) -> None:
        self.attached = True
        self.machine.lifeline_came()

    @precondition(lambda self: self.attached)
    @rule(really=st.integers(0, 3))
    def lifeline_goes(self, really: int) -> None:
        if really:
            return  # a rare event: most runs should get to hold leases
        self.attached, self.told_to_end = False, True
        self._apply(self.machine.lifeline_gone())
        assert not self.leased

    @rule(really=st.integers(0, 4))
    def drain(self, really: int) -> None:
        if really:
            return
        self.drained = self.told_to_end = True
        self._apply(self.machine.drain())

    # ------------------------------------------------------------------ invariants

    @invariant()
    def every_slot_is_somewhere_once(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert self.machine.taken_count == self.arena.taken_count + len(self.making) <= SLOTS
        assert self.machine.leases.leased_count == len(self.leased)
        assert self.arena.taken_count == len(self.leased) + len(self.holding), "a slot is used twice, or by nobody"

    @invariant()
    def credits_are_never_exceeded(self) -> None:
        if self.live is not None:
            assert self.planned <= self.credits

    @invariant()
    def nothing_idles_that_could_be_made(self) -> None:
        """With credits and free slots left, either the stream is over or a step was planned for each."""
        if self.live is None or self.over or any(isinstance(i, SendEnd | SendError | Finish) for i in self.outbox):
            return
        if self.live._planned_all:
            return
        free = SLOTS - self.machine.taken_count
        assert not (free and self.planned < self.credits), "a credit and a free slot, and nothing was planned"


SessionModel.TestCase.settings = settings(max_examples=budget(80), stateful_step_count=50, deadline=None)
TestSessionModel = SessionModel.TestCase
