from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadShard, Draining
from feedd.flow.arena import Arena
from feedd.serve.instructions import Finish, Instruction, Produce, Reclaim, Send, SendEnd, SendError
from feedd.serve.session_machine import CREDITS_MAX, SessionMachine, StreamMachine
from feedd.values import BatchReady, Cursor, EpochEnd, SlotRef

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def arena() -> Iterator[Arena]:
    """Three slots."""
    with Arena(3, mmap.PAGESIZE) as made:
        yield made


def _ready(at: Cursor) -> BatchReady:
    return BatchReady(at, 2, (), 10, bad_samples=1)


def _jobs(out: list[Instruction]) -> list[Produce]:
    return [item for item in out if isinstance(item, Produce)]


def _begin(
    machine: SessionMachine, at: Cursor | None = None, *, credits: int = 0
) -> tuple[StreamMachine, list[Produce]]:
    machine.start(at or Cursor())
    assert machine.stream is not None
    return machine.stream, _jobs(machine.stream.credits(credits) if credits else [])


def test_a_step_needs_a_credit_and_a_slot(arena: Arena) -> None:
    """Nothing is planned without credit; three credits fill three slots; the fourth waits for a slot."""
    stream, jobs = _begin(SessionMachine(arena))
    assert not jobs
    jobs = _jobs(stream.credits(4))
    assert [job.at.step for job in jobs] == [0, 1, 2]
    assert arena.taken_count == stream.making_count == 3


def test_a_release_lets_the_next_step_be_made(arena: Arena) -> None:
    """A freed slot is used at once where a credit is left."""
    machine = SessionMachine(arena)
    machine.lifeline_came()
    stream, jobs = _begin(machine, credits=4)
    (send,) = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert isinstance(send, Send)
    assert stream.sent(send.seq, held=True) == []
    (job,) = _jobs(stream.releases([send.slot]))
    assert job.at.step == 3
    assert job.slot == SlotRef(send.slot.index, send.slot.generation + 1)


def test_a_release_of_another_generation_is_stale(arena: Arena) -> None:
    """A lease ends only by its own slot and generation."""
    machine = SessionMachine(arena)
    machine.lifeline_came()
    stream, jobs = _begin(machine, credits=1)
    (send,) = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert isinstance(send, Send)
    stream.sent(send.seq, held=True)
    stream.releases([SlotRef(send.slot.index, send.slot.generation + 1), SlotRef(send.slot.index, 0)])
    assert machine.leases.stale_count == 2
    assert machine.leases.held_count == 1


def test_a_lease_without_lifeline_is_free_again(arena: Arena) -> None:
    """What is sent after the client's process has gone is nobody's."""
    machine = SessionMachine(arena)
    machine.lifeline_came()
    stream, jobs = _begin(machine, credits=1)
    (send,) = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert isinstance(send, Send)
    out = machine.lifeline_gone()
    assert isinstance(out[0], SendError)
    stream.sent(send.seq, held=True)
    assert machine.leases.held_count == arena.taken_count == 0


def test_nothing_is_planned_beyond_a_known_end(arena: Arena) -> None:
    """Once any step said the epoch is over, no further step is asked for; the end waits for its turn."""
    stream, jobs = _begin(SessionMachine(arena), credits=9)
    assert stream.produced(jobs[2].slot, EpochEnd(0, 2)) == []
    out = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert [type(item) for item in out] == [Send]
    assert _jobs(stream.sent(0, held=False)) == []
    out = stream.produced(jobs[1].slot, _ready(jobs[1].at))
    assert [type(item) for item in out] == [Send, SendEnd]
    assert out[1] == SendEnd(EpochEnd(0, 2), 4, 2)
    stream.sent(1, held=False)
    assert arena.taken_count == 0


def test_an_error_waits_for_earlier_steps_and_ends_the_stream(arena: Arena) -> None:
    """Batches before the broken step are sent; those after it are dropped and their slots freed."""
    stream, jobs = _begin(SessionMachine(arena), credits=3)
    fault = BadShard("expected a header, got none")
    assert stream.produced(jobs[1].slot, fault) == []
    assert stream.produced(jobs[2].slot, _ready(jobs[2].at)) == []
    out = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert [type(item) for item in out] == [Send, SendError]
    assert out[1] == SendError(fault)
    assert stream.credits(5) == []
    stream.sent(0, held=False)
    assert arena.taken_count == 0


def test_anchors_travel_to_later_steps(arena: Arena) -> None:
    """A produced batch's anchor is handed to the steps planned after it."""
    stream, jobs = _begin(SessionMachine(arena), Cursor(5, 8, ((1, 100),)), credits=1)
    assert jobs[0].at == Cursor(5, 8, ((1, 100),))
    stream.produced(jobs[0].slot, _ready(Cursor(5, 8, ((2, 160),))))
    (job,) = _jobs(stream.credits(1))
    assert job.at == Cursor(5, 9, ((2, 160),))


@pytest.mark.parametrize(("start", "steps"), [(0, [1, 4]), (1, [1, 4]), (2, [4, 7]), (4, [4, 7])])
def test_a_consumer_starts_at_its_first_own_step(arena: Arena, start: int, steps: list[int]) -> None:
    """From any step, consumer 1 of 3 goes on with the next step that is its own."""
    _, jobs = _begin(SessionMachine(arena, 3, 1), Cursor(0, start), credits=2)
    assert [job.at.step for job in jobs] == steps


def test_productions_that_outlive_their_stream_keep_their_slot(arena: Arena) -> None:
    """A slot being written into is not free before the writer has ended."""
    machine = SessionMachine(arena)
    stream, jobs = _begin(machine, credits=2)
    stream.produced(jobs[1].slot, _ready(jobs[1].at))
    stream.gone()
    assert arena.taken_count == 1
    with pytest.raises(AssertionError, match="have not ended"):
        machine.stream_ended()
    assert stream.produced(jobs[0].slot, None) == []
    assert arena.taken_count == 0
    machine.stream_ended()


def test_a_batch_that_was_not_handed_out_is_free_with_its_stream(arena: Arena) -> None:
    """What waited to be sent when the stream went is nobody's."""
    stream, jobs = _begin(SessionMachine(arena), credits=1)
    (send,) = stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert isinstance(send, Send)
    stream.gone()
    assert arena.taken_count == stream.taken_count == 0


def test_leases_outlive_streams_until_the_lifeline_ends(arena: Arena) -> None:
    """The end of a stream frees no lease; the end of the client's process frees them all."""
    machine = SessionMachine(arena)
    machine.lifeline_came()
    stream, jobs = _begin(machine, credits=2)
    for job in jobs:
        (send,) = stream.produced(job.slot, _ready(job.at))
        assert isinstance(send, Send)
        stream.sent(send.seq, held=True)
    stream.gone()
    machine.stream_ended()
    assert arena.taken_count == machine.leases.held_count == 2
    out = machine.lifeline_gone()
    assert out == [Reclaim((jobs[0].slot, jobs[1].slot))]
    assert arena.taken_count == 0


def test_half_close_serves_the_credits_given(arena: Arena) -> None:
    """A client that says no more still gets what it has credit for, then the stream finishes."""
    stream, jobs = _begin(SessionMachine(arena), credits=1)
    assert stream.half_closed() == []
    stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert stream.sent(0, held=False) == [Finish()]
    assert stream.half_closed() == []


def test_drain_says_so_and_frees_what_is_not_sent(arena: Arena) -> None:
    """Draining ends a stream in-band; one that ended already hears nothing more."""
    machine = SessionMachine(arena)
    assert machine.drain() == []
    stream, jobs = _begin(machine, credits=2)
    stream.produced(jobs[1].slot, _ready(jobs[1].at))
    (said,) = machine.drain()
    assert isinstance(said, SendError)
    assert isinstance(said.error, Draining)
    assert machine.drain() == []
    assert arena.taken_count == 1
    stream.produced(jobs[0].slot, _ready(jobs[0].at))
    assert arena.taken_count == 0


def test_credits_are_bounded(arena: Arena) -> None:
    """A client's sum of credits cannot grow without bound."""
    stream, _ = _begin(SessionMachine(arena))
    for _ in range(3):
        stream.credits(CREDITS_MAX)
    assert stream._credits <= CREDITS_MAX


def test_a_slot_is_taken_for_its_step(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena is told which batch a slot is for, and what it then gives is what is produced into."""
    asked: list[Cursor | None] = []
    take = arena.take

    def noted(at: Cursor | None = None) -> SlotRef | None:
        asked.append(at)
        return take()

    monkeypatch.setattr(arena, "take", noted)
    _, jobs = _begin(SessionMachine(arena), Cursor(3, 5), credits=2)
    assert [job.at for job in jobs] == asked == [Cursor(3, 5), Cursor(3, 6)]


def test_the_slot_of_the_end_is_free_at_once(arena: Arena) -> None:
    """Nothing lies in it: it does not wait for the batches before the end."""
    stream, jobs = _begin(SessionMachine(arena), credits=3)
    assert stream.produced(jobs[2].slot, EpochEnd(0, 2)) == []
    assert arena.taken_count == stream.taken_count == 2
    stream.gone()
    for job in jobs[:2]:
        stream.produced(job.slot, None)
    assert arena.taken_count == stream.taken_count == 0
