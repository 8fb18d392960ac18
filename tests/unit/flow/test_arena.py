from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.errors import BadConfig, Internal, ResourceExhausted
from feedd.flow.arena import Arena
from feedd.flow.memory import ArenaBudget
from feedd.metrics import SERVE_ARENA_BYTES
from feedd.owner import Owner
from feedd.values import SlotRef
from tests.budget import PATIENT_S
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from feedd.protocols import Slots

PAGE = mmap.PAGESIZE


def test_slots_are_whole_pages() -> None:
    """Slot sizes are rounded up to pages, and the file is as large as all of them."""
    with Arena(3, PAGE + 1) as arena:
        slots: Slots = arena
        assert slots.slot_bytes == 2 * PAGE
        assert arena.size_bytes == 6 * PAGE
        assert os.fstat(arena.fd).st_size == 6 * PAGE


def test_every_byte_is_allocated_at_once() -> None:
    """No page is missing before the first write: a full machine cannot turn a write into SIGBUS."""
    with Arena(4, 64 * PAGE) as arena:
        assert os.fstat(arena.fd).st_blocks * 512 >= arena.size_bytes


def test_the_size_is_sealed() -> None:
    """Whoever received the descriptor can neither shrink nor grow the file nor add seals."""
    with Arena(1, PAGE) as arena:
        for size in (0, 2 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(arena.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_descriptor_is_not_inherited() -> None:
    """A program started by the daemon does not get the arena."""
    with Arena(1, PAGE) as arena:
        assert not os.get_inheritable(arena.fd)


def test_take_until_empty_and_again() -> None:
    """Each slot is taken once; a freed one comes back under a higher generation."""
    with Arena(2, PAGE) as arena:
        first, second = arena.take(), arena.take()
        assert first is not None
        assert second is not None
        assert {first.index, second.index} == {0, 1}
        assert arena.take() is None
        assert arena.taken_count == 2
        assert arena.give_back(first)
        again = arena.take()
        assert again == SlotRef(first.index, first.generation + 1)


def test_stale_returns_are_refused() -> None:
    """A return of a former use, a second return, and a slot that does not exist change nothing."""
    with Arena(1, PAGE) as arena:
        first = arena.take()
        assert first is not None
        assert arena.give_back(first)
        assert not arena.give_back(first)
        second = arena.take()
        assert second is not None
        assert not arena.give_back(first)
        assert not arena.give_back(SlotRef(5, 1))
        assert not arena.give_back(SlotRef(-1, second.generation))
        assert arena.taken_count == 1


def test_a_view_is_the_slot_in_the_file() -> None:
    """What is written into a view is what a process that maps the descriptor reads."""
    with Arena(3, PAGE) as arena:
        slot = arena.take()
        assert slot is not None
        arena.view(slot)[:5] = b"hello"
        with mmap.mmap(arena.fd, arena.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as other:
            assert other[slot.index * PAGE : slot.index * PAGE + 5] == b"hello"
        assert arena.give_back(slot)
        with pytest.raises(Internal):
            arena.view(slot)


def test_close_with_exported_buffers() -> None:
    """Closing is idempotent and complete whoever still holds a view, a slice or an array of a slot."""
    budget = ArenaBudget(1 << 20)
    arena = Arena(2, PAGE, budget)
    slot = arena.take()
    assert slot is not None
    view = arena.view(slot)
    cut = view[10:20]
    array = np.frombuffer(view, np.uint8)
    fd = arena.fd
    arena.close()
    arena.close()
    assert budget.reserved_bytes == 0
    assert arena.fd == -1
    assert arena.take() is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    with pytest.raises(Internal):
        arena.view(slot)
    assert array[0] == 0, "a holder's buffer stays readable"
    assert cut[0] == 0


def test_mapping_goes_with_the_last_buffer() -> None:
    """After close no mapping of the arena is left in the process."""
    arena = Arena(1, PAGE)
    slot = arena.take()
    assert slot is not None
    arena.view(slot)
    arena.close()
    assert "feedd-arena" not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_the_budget_bounds_all_arenas_together() -> None:
    """An arena that does not fit beside the others is refused with all numbers; closing makes room."""
    budget = ArenaBudget(10 * PAGE)
    first = Arena(6, PAGE, budget)
    with pytest.raises(ResourceExhausted, match=r"at most 16KiB \(limit 40KiB, in use 24KiB\), got 20KiB"):
        Arena(5, PAGE, budget)
    first.close()
    second = Arena(10, PAGE, budget)
    assert budget.reserved_bytes == budget.limit_bytes == 10 * PAGE
    second.close()
    assert budget.reserved_bytes == 0


def test_a_closed_arena_counts_until_its_last_client_lets_go() -> None:
    """The gauge shows what the budget counts, and both keep a closed arena as long as a client maps the memory."""
    recorder = TallyRecorder()
    budget = ArenaBudget(10 * PAGE, recorder)
    arena = Arena(6, PAGE, budget)
    with ExitStack() as one, ExitStack() as other:
        for client in (one, other):
            assert client.enter_context(arena.client_mapping()) == arena.fd
        arena.close()
        arena.close()
        one.close()
        assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 6 * PAGE
        with pytest.raises(ResourceExhausted, match="in use 24KiB") as caught:
            Arena(5, PAGE, budget)
        assert "until its batches are dropped" in caught.value.hint
        other.close()
        assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 0
    Arena(10, PAGE, budget).close()
    assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 0


def test_a_client_that_lets_go_leaves_the_memory_to_the_daemon() -> None:
    """An arena in use counts though no client maps it, and goes with its close; what failed counts nothing."""
    recorder = TallyRecorder()
    budget = ArenaBudget(10 * PAGE, recorder)
    with Arena(6, PAGE, budget) as arena:
        with arena.client_mapping():
            pass
        with pytest.raises(ResourceExhausted):
            Arena(5, PAGE, budget)
        assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 6 * PAGE
    assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 0


def test_what_can_never_fit_is_not_worth_waiting_for() -> None:
    """An arena above the whole budget is refused for good, with both sizes and the option."""
    budget = ArenaBudget(4 * PAGE)
    with pytest.raises(BadConfig, match=r"at most 16KiB, got 20KiB") as caught:
        Arena(5, PAGE, budget)
    assert caught.value.object == "arena.size"
    assert not caught.value.retryable


def test_more_than_the_machine_has_is_refused_early() -> None:
    """An absurd size fails at once, names it, and leaves neither claim nor descriptor."""
    budget = ArenaBudget(1 << 62)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ResourceExhausted, match="1024TiB"):
        Arena(1024, 1 << 40, budget)
    assert budget.reserved_bytes == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("count", "size"), [(0, PAGE), (1, 0)])
def test_an_empty_arena_is_a_mistake(count: int, size: int) -> None:
    """At least one slot of at least one byte."""
    with pytest.raises(ValueError, match="at least 1 slot"):
        Arena(count, size)


async def test_create_off_the_loop() -> None:
    """The loop is free while memory is allocated, and the arena is the caller's."""
    arena = await Arena.create(2, PAGE)
    assert arena.slot_count == 2
    arena.close()


async def test_a_cancelled_create_keeps_nothing() -> None:
    """Whoever is cancelled while waiting for an arena leaves no memory claimed."""
    budget = ArenaBudget(1 << 30)
    task = asyncio.ensure_future(Arena.create(4, 1 << 20, budget))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert budget.reserved_bytes == 0  # at once: whoever is told of the end may look


def test_a_view_that_outlives_its_arena_counts() -> None:
    """The bytes of a closed arena count for its owner until the last part of the view is gone."""
    recorder = TallyRecorder()
    budget = ArenaBudget(10 * PAGE, recorder)
    arena = Arena(1, 6 * PAGE, budget.of(Owner.of_uid(7)))
    slot = arena.take()
    assert slot is not None
    view = arena.outliving_view(slot)
    part = view[5:9]
    arena.close()
    del arena, view
    assert bytes(part) == bytes(4)
    assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 6 * PAGE
    with pytest.raises(ResourceExhausted):
        budget.reserve(5 * PAGE)
    del part
    assert budget.reserved_bytes == recorder.total(SERVE_ARENA_BYTES) == 0


async def test_an_arena_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits later is waited for, a while; what can never fit is refused at once."""
    budget = ArenaBudget(10 * PAGE)
    mine = budget.of(Owner.of_uid(7))
    budget.reserve(6 * PAGE)
    waiting = asyncio.ensure_future(Arena.create_when_room(5 * PAGE, mine))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    budget.release(6 * PAGE)
    with await waiting as arena:
        assert budget.reserved_bytes == arena.size_bytes == 5 * PAGE
        monkeypatch.setattr("feedd.flow.arena._ROOM_WAIT_S", 0.1)
        with pytest.raises(ResourceExhausted):
            await Arena.create_when_room(6 * PAGE, mine)
        with pytest.raises(BadConfig):
            await Arena.create_when_room(11 * PAGE, mine)
    assert budget.reserved_bytes == 0


def _allocated_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena of more than a page counts as large."""
    monkeypatch.setattr("feedd.flow.arena._AT_ONCE_BYTES", PAGE)


@pytest.mark.usefixtures("large")
async def test_a_large_arena_is_allocated_slot_by_slot() -> None:
    """The open waits for the first slot, the first batch for no other, and after it all others follow by themselves."""
    arena = await Arena.create(3, 64 * PAGE, gradual=True)
    slots = [slot for slot in (arena.take() for _ in range(3)) if slot is not None]
    assert _allocated_bytes(arena) == arena.slot_bytes
    await arena.allocated(slots[0])
    await arena.allocated(slots[2])
    assert _allocated_bytes(arena) == arena.size_bytes
    await arena.allocated(slots[1])
    arena.close()
    with Arena(3, 64 * PAGE) as whole:
        assert _allocated_bytes(whole) == whole.size_bytes


async def test_a_small_arena_is_allocated_at_once() -> None:
    """Its open would gain nothing."""
    with await Arena.create(3, 64 * PAGE, gradual=True) as arena:
        assert _allocated_bytes(arena) == arena.size_bytes
        slot = arena.take()
        assert slot is not None
        await arena.allocated(slot)


@pytest.mark.usefixtures("large")
async def test_later_slots_for_which_there_is_no_memory_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches that need them fail as an open does; the first slot stays usable."""
    free = iter([1 << 40, 64 * PAGE, 63 * PAGE])
    monkeypatch.setattr("feedd.flow.arena.available_bytes", lambda: next(free))
    arena = await Arena.create(4, 64 * PAGE, gradual=True)
    slots = [slot for slot in (arena.take() for _ in range(4)) if slot is not None]
    await arena.allocated(slots[0])
    await arena.allocated(slots[1])
    for slot in slots[2:]:
        with pytest.raises(ResourceExhausted, match="more memory than"):
            await arena.allocated(slot)
    assert _allocated_bytes(arena) == 2 * arena.slot_bytes
    arena.close()


@pytest.mark.usefixtures("large")
async def test_later_slots_wait_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """If none is left, the batch fails, and the next one tries again: nobody waits for a thread that never began."""
    arena = await Arena.create(2, 64 * PAGE, gradual=True)
    slots = [slot for slot in (arena.take() for _ in range(2)) if slot is not None]
    with monkeypatch.context() as without:
        without.setattr(os, "dup", lambda _: os.close(-1))
        with pytest.raises(ResourceExhausted, match="cannot be allocated"):
            await arena.allocated(slots[0])
    await asyncio.wait_for(arena.allocated(slots[1]), PATIENT_S)
    assert _allocated_bytes(arena) == arena.size_bytes
    arena.close()


@pytest.mark.usefixtures("large")
async def test_a_large_arena_that_does_not_fit_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though only its first slot would be allocated."""
    monkeypatch.setattr("feedd.flow.arena.available_bytes", lambda: 3 * 64 * PAGE - 1)
    with pytest.raises(ResourceExhausted):
        await Arena.create(3, 64 * PAGE, gradual=True)


@pytest.mark.usefixtures("large")
async def test_a_closed_arena_allocates_no_further_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that ends early takes no memory any more, and its waiting batches may be cancelled."""
    sizes: list[int] = []
    going, may_go = threading.Event(), threading.Event()

    def allocate(fd: int, at: int, size_bytes: int) -> None:
        sizes.append(size_bytes)
        if at:
            going.set()
            assert may_go.wait(PATIENT_S)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    arena = await Arena.create(4, 64 * PAGE, gradual=True)
    slots = [slot for slot in (arena.take() for _ in range(4)) if slot is not None]
    waiting = asyncio.ensure_future(arena.allocated(slots[3]))
    await asyncio.to_thread(going.wait, 10.0)
    arena.close()
    waiting.cancel()
    await asyncio.wait([waiting])
    may_go.set()
    await asyncio.sleep(0.05)  # the thread would go on by now
    assert len(sizes) == 2
