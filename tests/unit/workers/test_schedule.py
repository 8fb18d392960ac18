from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedd.workers.schedule import Call, Chunk, Schedule


def drain(schedule: Schedule) -> list[tuple[int, Chunk]]:
    """Assign until nothing more can be."""
    assigned = []
    while (pair := schedule.assign()) is not None:
        assigned.append(pair)
    return assigned


def test_chunks_go_out_in_order_and_to_the_least_busy() -> None:
    """Every worker gets one chunk before any gets a second, in call order, and never more than two."""
    schedule, first, second = Schedule(), Call(), Call()
    for worker in (0, 1):
        schedule.join(worker)
    schedule.submit(first, 70, 32)
    schedule.submit(second, 64, 32)
    assert [(worker, chunk.rows) for worker, chunk in drain(schedule)] == [
        (0, range(32)),
        (1, range(32, 64)),
        (0, range(64, 70)),
        (1, range(32)),
    ]
    assert schedule.finish(1).call is first
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(1, second)]
    assert schedule.holders(second) == [1]


def test_chunks_wait_in_a_queue_or_behind_the_running_one() -> None:
    """A chunk waits if no worker holds it, or if its worker works on another; a chunk that runs does not wait."""
    schedule, call = Schedule(), Call()

    def queued() -> bool:
        return schedule.queued

    assert not queued()
    schedule.submit(call, 3, 1)
    assert queued(), "in a queue: there is no worker"
    schedule.join(0)
    assert [worker for worker, _ in drain(schedule)] == [0, 0]
    assert queued(), "in both places"
    schedule.finish(0)
    drain(schedule)
    assert schedule.unassigned_count == 0
    assert queued(), "in the worker's socket"
    schedule.finish(0)
    assert schedule.busy_count == 1
    assert not queued(), "the last one runs"
    schedule.finish(0)
    assert not queued()


def test_streams_take_turns_call_by_call() -> None:
    """However much one stream asked for before, another's first call comes second; each stream's are in order."""
    schedule = Schedule()
    greedy, late, urgent = [Call(1) for _ in range(3)], [Call(2) for _ in range(2)], Call(0)
    for call in (*greedy, *late, urgent):
        schedule.submit(call, 4, 2)
    schedule.join(0)
    order = []
    while (pair := schedule.assign()) is not None:
        order.append(pair[1])
        schedule.finish(0)
    calls = [greedy[0], late[0], urgent, greedy[1], late[1], greedy[2]]
    assert [chunk.call for chunk in order] == [call for call in calls for _ in range(2)]
    assert [chunk.rows for chunk in order] == [range(2), range(2, 4)] * 6


def test_a_death_is_blamed_on_the_running_chunk_only() -> None:
    """The running chunk comes back row by row, suspect; the one that waited comes back whole; both before others."""
    schedule, call = Schedule(), Call()
    schedule.join(0)
    schedule.submit(call, 12, 4)
    drain(schedule)
    given_up, concerned = schedule.leave(0, withdrawn=set())
    assert (given_up, concerned) == ([], {call})
    schedule.join(0)
    replayed = []
    while (pair := schedule.assign()) is not None:
        replayed.append((pair[1].rows, pair[1].suspect))
        schedule.finish(0)
    singles = [(range(row, row + 1), True) for row in range(4)]
    assert replayed == [*singles, (range(4, 8), False), (range(8, 12), False)]
    assert call.over


def _begin(chunk: Chunk) -> None:
    chunk.started = True


def test_a_row_that_no_worker_began_is_not_given_up() -> None:
    """Workers that were dead before they read a suspect say nothing against it, nor for it: the next one tells."""
    schedule, call = Schedule(), Call()
    schedule.submit(call, 1, 1)
    for _ in range(20):
        schedule.join(0)
        drain(schedule)
        assert schedule.leave(0, withdrawn=set())[0] == []
    schedule.join(0)
    [(_, suspect)] = drain(schedule)
    _begin(suspect)
    assert schedule.leave(0, withdrawn=set())[0] == [suspect]
    assert call.over


def test_a_row_that_is_never_begun_is_given_up_at_last() -> None:
    """Workers that die one after another before they do anything are no reason to try for ever."""
    schedule, call = Schedule(), Call()
    schedule.submit(call, 1, 1)
    deaths = 0
    while not call.over:
        schedule.join(0)
        drain(schedule)
        schedule.leave(0, withdrawn=set())
        deaths += 1
    assert 200 < deaths < 300


def test_a_row_that_kills_twice_is_given_up() -> None:
    """A suspect that takes a second worker with it is not tried again."""
    schedule, call = Schedule(), Call()
    schedule.submit(call, 2, 2)
    for _ in range(2):
        schedule.join(0)
        _begin(drain(schedule)[0][1])
        given_up, _ = schedule.leave(0, withdrawn=set())
    assert [chunk.rows for chunk in given_up] == [range(1)]
    schedule.join(0)
    assert [chunk.rows for _, chunk in drain(schedule)] == [range(1, 2)]


def test_withdrawn_calls_leave_nothing_waiting() -> None:
    """After withdraw, what waited is gone, what runs finishes, and a death brings nothing of it back."""
    schedule, gone, stays = Schedule(), Call(), Call()
    schedule.join(0)
    schedule.submit(gone, 8, 2)
    schedule.submit(stays, 2, 2)
    drain(schedule)
    schedule.withdraw(gone)
    assert (gone.waiting_count, gone.running_count, gone.over) == (0, 2, False)
    schedule.leave(0, withdrawn={gone})
    assert gone.over
    schedule.join(0)
    assert [chunk.call for _, chunk in drain(schedule)] == [stays]


def test_a_chunk_too_large_for_a_packet_is_halved() -> None:
    """Taking back and dividing puts both halves first in line."""
    schedule, call = Schedule(), Call()
    schedule.join(0)
    schedule.submit(call, 7, 5)
    pair = schedule.assign()
    assert pair is not None
    schedule.take_back(0)
    schedule.divide(pair[1])
    assert [chunk.rows for _, chunk in drain(schedule)] == [range(2), range(2, 5)]
    assert (call.waiting_count, call.running_count) == (1, 2)


@given(data=st.data(), rows=st.integers(1, 40), chunk_rows=st.integers(1, 9), workers=st.integers(1, 4))
def test_every_row_is_done_or_given_up_exactly_once(
    data: st.DataObject, rows: int, chunk_rows: int, workers: int
) -> None:
    """Whoever dies whenever, each row ends exactly once, and poison rows cost at most two workers each."""
    schedule, call = Schedule(), Call()
    poison = data.draw(st.sets(st.integers(0, rows - 1), max_size=3))
    accidents = data.draw(st.integers(0, 3))
    for worker in range(workers):
        schedule.join(worker)
    schedule.submit(call, rows, chunk_rows)
    done: list[int] = []
    lost: list[int] = []
    blamed = set(poison)  # a suspect that had begun when its worker died for another reason looks like poison
    deaths = 0
    while not call.over:
        drain(schedule)
        busy = [worker for worker in range(workers) if schedule.running(worker)]
        worker = data.draw(st.sampled_from(busy))
        chunk = schedule.running(worker)
        assert chunk is not None
        accident = accidents > 0 and data.draw(st.booleans())
        if accident or poison & set(chunk.rows):
            accidents -= accident
            deaths += 1
            chunk.started = not accident or data.draw(st.booleans())
            blamed |= set(chunk.rows) if chunk.suspect and chunk.started else set()
            given_up, _ = schedule.leave(worker, withdrawn=set())
            lost.extend(row for lost_chunk in given_up for row in lost_chunk.rows)
            schedule.join(worker)
        else:
            done.extend(schedule.finish(worker).rows)
    assert sorted(done + lost) == list(range(rows))
    assert poison <= set(lost) <= blamed
    assert deaths <= 2 * len(poison) + 3


def test_long_chunks_leave_a_worker_to_the_others() -> None:
    """However many long calls wait, one of several workers is none of theirs; an only worker does them in turn."""
    schedule, short = Schedule(), Call(1)
    long = [Call(-1, alone=True) for _ in range(4)]
    for call in long:
        schedule.submit(call, 1, 1)
    for worker in (0, 1, 2):
        schedule.join(worker)
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(0, long[0]), (1, long[1])]
    schedule.submit(short, 2, 1)
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(2, short), (2, short)]
    schedule.finish(0)
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(0, long[2])]
    for worker in (1, 2):
        schedule.leave(worker, withdrawn=set(long))
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == []
    schedule.finish(0)
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(0, short), (0, short)]
    for _ in range(2):
        schedule.finish(0)
    assert [(worker, chunk.call) for worker, chunk in drain(schedule)] == [(0, long[3])]


def test_a_resting_worker_gets_nothing_more() -> None:
    """Who is let go finishes what he holds; what waits goes to the others, also what he had to give back."""
    schedule, call = Schedule(), Call()
    for worker in (0, 1):
        schedule.join(worker)
    schedule.submit(call, 8, 1)
    drain(schedule)
    schedule.rest(0)
    assert (schedule.busy_count, schedule.queued) == (2, True)
    for _ in range(2):
        schedule.finish(0)
        assert drain(schedule) == []
    schedule.finish(1)
    assert [worker for worker, _ in drain(schedule)] == [1]
    assert (schedule.busy_count, schedule.queued) == (1, True)
    assert schedule.leave(0, withdrawn=set()) == ([], set())
    for _ in range(6):
        if schedule.running(1):
            schedule.finish(1)
        drain(schedule)
    assert (schedule.busy_count, schedule.queued, call.over) == (0, False, True)
