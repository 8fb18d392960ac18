from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadShard, Draining
from feedd.flow.arena import Arena
from feedd.serve.instructions import Finish, Free, Instruction, Produce, Reclaim, Send, SendEnd, SendError
from feedd.serve.session_machine import CREDITS_MAX, SessionMachine, StreamMachine
from feedd.values import BatchReady, Cursor, EpochEnd, Produced, SlotRef

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 3


class Driver:
    """Picks and releases slots as the machine says."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def made(self, at: Cursor) -> Produced:
        """Make a batch in a slot of the driver's choice."""
        slot = self.arena.take()
        assert slot is not None, "more was planned than there are slots"
        return Produced(BatchReady(at, 2, (), 10, bad_samples=1), slot)

    def do(self, out: list[Instruction]) -> list[Instruction]:
        """Release what is to be released; return the other instructions."""
        for item in out:
            for slot in (item.slot,) if isinstance(item, Free) else item.slots if isinstance(item, Reclaim) else ():
                assert self.arena.give_back(slot), "a slot was freed twice"
        return [item for item in out if not isinstance(item, Free)]

    def sent(self, stream: StreamMachine, at: Cursor, *, held: bool) -> Send:
        """Make a batch that is next in line, and hand it out."""
        (send,) = stream.produced(at, self.made(at))
        assert isinstance(send, Send)
        self.do(stream.sent(send.seq, held=held))
        return send


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Of three slots."""
    with Arena(SLOTS, mmap.PAGESIZE) as arena:
        yield Driver(arena)


def _steps(out: list[Instruction]) -> list[Cursor]:
    return [item.at for item in out if isinstance(item, Produce)]


def _begin(
    machine: SessionMachine, at: Cursor | None = None, *, credits: int = 0
) -> tuple[StreamMachine, list[Cursor]]:
    machine.start(at or Cursor())
    assert machine.stream is not None
    return machine.stream, _steps(machine.stream.credits(credits) if credits else [])


def test_a_step_needs_a_credit_and_a_slot() -> None:
    """Nothing is planned without credit; three credits promise three slots; the fourth waits for a slot."""
    machine = SessionMachine(SLOTS)
    stream, steps = _begin(machine)
    assert not steps
    steps = _steps(stream.credits(4))
    assert [at.step for at in steps] == [0, 1, 2]
    assert machine.taken_count == stream.making_count == 3


def test_a_release_lets_the_next_step_be_made(driver: Driver) -> None:
    """A freed slot is used at once where a credit is left; it is released before the step is made."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=4)
    send = driver.sent(stream, steps[0], held=True)
    freed, planned = stream.releases([send.produced.slot])
    assert (freed, planned) == (Free(send.produced.slot), Produce(Cursor(0, 3)))


def test_what_waits_is_shown(driver: Driver) -> None:
    """A batch made before an earlier one waits, and so does a credit without a slot; the stream's end drops both."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=5)
    assert (stream.credit_count, stream.ready_sizes) == (2, [])
    driver.do(stream.produced(steps[1], driver.made(steps[1])))
    assert (stream.credit_count, stream.ready_sizes) == (2, [10])
    driver.do(stream.produced(steps[0], driver.made(steps[0])))
    assert stream.ready_sizes == []
    driver.do(stream.produced(steps[2], driver.made(steps[2])))
    driver.do(stream.gone())
    assert (stream.credit_count, stream.ready_sizes) == (0, [])


def test_a_release_of_another_generation_is_stale(driver: Driver) -> None:
    """A lease ends only by its own slot and generation."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=1)
    slot = driver.sent(stream, steps[0], held=True).produced.slot
    assert not stream.releases([SlotRef(slot.index, slot.generation + 1), SlotRef(slot.index, 0)])
    assert machine.leases.stale_count == 2
    assert machine.leases.leased_count == driver.arena.taken_count == 1


def test_a_lease_without_lifeline_is_free_again(driver: Driver) -> None:
    """What is sent after the client's process has gone is nobody's."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=1)
    (send,) = stream.produced(steps[0], driver.made(steps[0]))
    assert isinstance(send, Send)
    out = machine.lifeline_gone()
    assert isinstance(out[0], SendError)
    assert stream.sent(send.seq, held=True) == [Free(send.produced.slot)]
    assert machine.leases.leased_count == machine.taken_count == 0


def test_nothing_is_planned_beyond_a_known_end(driver: Driver) -> None:
    """Once any step said the epoch is over, no further step is asked for; the end waits for its turn."""
    stream, steps = _begin(SessionMachine(SLOTS), credits=9)
    assert stream.produced(steps[2], EpochEnd(0, 2)) == []
    out = stream.produced(steps[0], driver.made(steps[0]))
    assert [type(item) for item in out] == [Send]
    assert driver.do(stream.sent(0, held=False)) == []
    out = stream.produced(steps[1], driver.made(steps[1]))
    assert [type(item) for item in out] == [Send, SendEnd]
    assert out[1] == SendEnd(EpochEnd(0, 2), 4, 2)
    driver.do(stream.sent(1, held=False))
    assert driver.arena.taken_count == 0


def test_an_error_waits_for_earlier_steps_and_ends_the_stream(driver: Driver) -> None:
    """Batches before the broken step are sent; those after it are dropped and their slots freed."""
    machine = SessionMachine(SLOTS)
    stream, steps = _begin(machine, credits=3)
    fault = BadShard("expected a header, got none")
    assert stream.produced(steps[1], fault) == []
    assert stream.produced(steps[2], driver.made(steps[2])) == []
    out = driver.do(stream.produced(steps[0], driver.made(steps[0])))
    assert [type(item) for item in out] == [Send, SendError]
    assert out[1] == SendError(fault)
    assert stream.credits(5) == []
    driver.do(stream.sent(0, held=False))
    assert driver.arena.taken_count == machine.taken_count == 0


def test_anchors_travel_to_later_steps(driver: Driver) -> None:
    """A produced batch's anchor is handed to the steps planned after it."""
    stream, steps = _begin(SessionMachine(SLOTS), Cursor(5, 8, ((1, 100),)), credits=1)
    assert steps[0] == Cursor(5, 8, ((1, 100),))
    stream.produced(steps[0], driver.made(Cursor(5, 8, ((2, 160),))))
    assert stream.credits(1) == [Produce(Cursor(5, 9, ((2, 160),)))]


@pytest.mark.parametrize(("start", "steps"), [(0, [1, 4]), (1, [1, 4]), (2, [4, 7]), (4, [4, 7])])
def test_a_consumer_starts_at_its_first_own_step(start: int, steps: list[int]) -> None:
    """From any step, consumer 1 of 3 goes on with the next step that is its own."""
    _, planned = _begin(SessionMachine(SLOTS, 3, 1), Cursor(0, start), credits=2)
    assert [at.step for at in planned] == steps


def test_productions_that_outlive_their_stream_keep_their_slot(driver: Driver) -> None:
    """A slot being written into is not free before the writer has ended, whatever comes of it."""
    machine = SessionMachine(SLOTS)
    stream, steps = _begin(machine, credits=3)
    stream.produced(steps[1], driver.made(steps[1]))
    driver.do(stream.gone())
    assert (machine.taken_count, driver.arena.taken_count) == (2, 0)
    with pytest.raises(AssertionError, match="have not ended"):
        machine.stream_ended()
    late = driver.made(steps[2])
    assert stream.produced(steps[2], late) == [Free(late.slot)]
    assert stream.produced(steps[0], None) == []
    assert machine.taken_count == 0
    machine.stream_ended()


def test_a_batch_that_was_not_handed_out_is_free_with_its_stream(driver: Driver) -> None:
    """What waited to be sent when the stream went is nobody's."""
    machine = SessionMachine(SLOTS)
    stream, steps = _begin(machine, credits=2)
    (send,) = stream.produced(steps[0], driver.made(steps[0]))
    assert isinstance(send, Send)
    assert stream.gone() == [Free(send.produced.slot)]
    assert stream.produced(steps[1], None) == []
    assert stream.ended
    assert machine.taken_count == 0


def test_leases_outlive_streams_until_the_lifeline_ends(driver: Driver) -> None:
    """The end of a stream frees no lease; the end of the client's process frees them all."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=2)
    slots = [driver.sent(stream, at, held=True).produced.slot for at in steps]
    assert stream.gone() == []
    machine.stream_ended()
    assert driver.arena.taken_count == machine.leases.leased_count == 2
    assert driver.do(machine.lifeline_gone()) == [Reclaim(tuple(slots))]
    assert driver.arena.taken_count == machine.taken_count == 0


def test_half_close_serves_the_credits_given(driver: Driver) -> None:
    """A client that says no more still gets what it has credit for, then the stream finishes."""
    stream, steps = _begin(SessionMachine(SLOTS), credits=1)
    assert stream.half_closed() == []
    stream.produced(steps[0], driver.made(steps[0]))
    assert driver.do(stream.sent(0, held=False)) == [Finish()]
    assert stream.half_closed() == []


def test_drain_says_so_and_frees_what_is_not_sent(driver: Driver) -> None:
    """Draining ends a stream in-band; one that ended already hears nothing more, and finishes."""
    machine = SessionMachine(SLOTS)
    assert machine.drain() == []
    stream, steps = _begin(machine, credits=2)
    stream.produced(steps[1], driver.made(steps[1]))
    (said,) = driver.do(machine.drain())
    assert isinstance(said, SendError)
    assert isinstance(said.error, Draining)
    assert machine.drain() == [Finish()]
    assert (machine.taken_count, driver.arena.taken_count) == (1, 0)
    driver.do(stream.produced(steps[0], driver.made(steps[0])))
    assert machine.taken_count == driver.arena.taken_count == 0


@pytest.mark.parametrize("end", ["drain", "lifeline_gone"])
def test_a_stream_that_ended_lasts_until_it_is_ended(driver: Driver, end: str) -> None:
    """Its client may take batches for long; a daemon that ends, and a client that is gone, do not wait for that."""
    machine = SessionMachine(SLOTS)
    machine.lifeline_came()
    stream, steps = _begin(machine, credits=2)
    slot = driver.sent(stream, steps[0], held=True).produced.slot
    assert stream.produced(steps[1], EpochEnd(0, 1)) == [SendEnd(EpochEnd(0, 1), 2, 1)]
    out = driver.do(getattr(machine, end)())
    assert out == [*([Reclaim((slot,))] if end == "lifeline_gone" else []), Finish()]
    assert stream.half_closed() == []


def test_credits_are_bounded() -> None:
    """A client's sum of credits cannot grow without bound."""
    stream, _ = _begin(SessionMachine(SLOTS))
    for _ in range(3):
        stream.credits(CREDITS_MAX)
    assert stream._credits <= CREDITS_MAX


def test_the_end_takes_no_slot(driver: Driver) -> None:
    """Nothing was made of it: the slot that was promised to it is free before the batches before the end are sent."""
    machine = SessionMachine(SLOTS)
    stream, steps = _begin(machine, credits=3)
    assert stream.produced(steps[2], EpochEnd(0, 2)) == []
    assert machine.taken_count == 2
    driver.do(stream.gone())
    for at in steps[:2]:
        stream.produced(at, None)
    assert machine.taken_count == 0
