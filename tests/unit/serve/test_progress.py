"""How far a stream is, as the session's machine tells it."""

from __future__ import annotations

from feedd.serve.session_machine import SessionMachine
from feedd.values import BatchReady, Cursor, Produced, SlotRef


def _produced(step: int, slot: int, alike: int = 0) -> Produced:
    return Produced(BatchReady(Cursor(2, step), 4, (), 10), SlotRef(slot, 0), alike)


def test_progress_is_behind_the_last_batch_that_was_sent() -> None:
    """A batch that waits for an earlier step is ready; both count once they are sent, also after the stream."""
    machine = SessionMachine(4)
    machine.lifeline_came()
    machine.start(Cursor(2, 10))
    stream = machine.stream
    assert stream is not None
    assert machine.progress == Cursor(2, 10)
    stream.credits(2)
    stream.produced(Cursor(2, 11), _produced(11, 1))
    assert (stream.ready_count, machine.progress.step) == (1, 10)
    stream.produced(Cursor(2, 10), _produced(10, 0))
    assert (stream.ready_count, machine.progress.step) == (2, 12)
    stream.sent(0, held=True)
    stream.sent(1, held=True)
    assert stream.ready_count == 0
    stream.gone()
    machine.stream_ended()
    assert machine.progress == Cursor(2, 12)


def test_runs_and_consumers_count_their_steps() -> None:
    """A run of four steps is four, and a consumer's step is behind those of the others."""
    runs = SessionMachine(4, run_batches=16)
    runs.start(Cursor(2, 0))
    assert runs.stream is not None
    runs.stream.credits(2)
    runs.stream.produced(Cursor(2, 0), _produced(0, 0))
    runs.stream.produced(Cursor(2, 1), _produced(1, 1, alike=3))
    assert runs.progress.step == 5
    consumer = SessionMachine(4, consumer_count=3, consumer_index=1)
    consumer.start(Cursor(2, 0))
    assert consumer.stream is not None
    consumer.stream.credits(1)
    consumer.stream.produced(Cursor(2, 1), _produced(1, 0))
    assert consumer.progress.step == 4
