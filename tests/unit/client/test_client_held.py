"""Batches that are held: valid as long as anybody holds any part of them, within bounds, whatever ends meanwhile."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import multiprocessing
import pickle
import queue
import threading
import weakref
from multiprocessing import resource_sharer
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import dlpack
from torch.utils.data import DataLoader

from feedd_client import BadOptionError, BatchesHeldError, FeedDataset
from tests.budget import PATIENT_S
from tests.fakes.feed_client import BATCH_SIZE, check_rich, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.fakes.feed_client import Bench


def _wanted(step: int) -> list[int]:
    return list(range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE))


def _in_slots(dataset: FeedDataset, batches: list[Any]) -> int:
    """How many of the batches lie in shared memory of the dataset's idle session."""
    session = dataset._runtime.borrow()
    assert session is not None
    assert session.mapping is not None
    start, end = session.mapping.address, session.mapping.address + len(session.mapping)
    dataset._runtime.give_back(session)
    return sum(start <= batch["img"].data_ptr() < end for batch in batches)


@pytest.mark.parametrize("slot_count", [1, 2, 3, 4, 7])
def test_a_list_of_batches_is_the_epoch(bench: Bench, slot_count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of an epoch that is kept whole every batch stays right; all slots but one are used, and one warning says so."""
    steps = 3 * slot_count + 2
    server = bench.server(steps=steps, slot_count=slot_count)
    dataset = bench.dataset(server, keys=True, prefetch=slot_count)
    kept = list(dataset)
    assert len(kept) == steps
    for step, batch in enumerate(kept):
        check_rich(batch, _wanted(step))
    assert server.leased_count == slot_count - 1
    told = [record for record in caplog.records if "private copies" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert f"{slot_count} slots" in told[0].getMessage()


@pytest.mark.parametrize("slot_count", [3, 4])
def test_a_plain_loop_copies_nothing(bench: Bench, slot_count: int, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that looks at one batch after the other reads all of them where the daemon wrote them."""
    dataset = bench.dataset(bench.server(steps=20, slot_count=slot_count))
    for batch in dataset:
        last = batch
        assert dataset._runtime.copies.live_bytes == 0
    assert _in_slots(dataset, [last]) == 1
    assert not caplog.records


@pytest.mark.parametrize("slot_count", [1, 2])
def test_few_slots_are_no_reason_to_warn(bench: Bench, slot_count: int, caplog: pytest.LogCaptureFixture) -> None:
    """With one or two slots a plain loop gets copies where it must, which is nobody's mistake."""
    for step, batch in enumerate(bench.dataset(bench.server(steps=9, slot_count=slot_count), keys=True)):
        check_rich(batch, _wanted(step))
    assert not caplog.records


def _through_a_thread(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
    given: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def hold(held: torch.Tensor) -> None:
        wanted.get()
        given.put(held)

    thread = threading.Thread(target=hold, args=(tensor,), daemon=True)
    thread.start()

    def get() -> torch.Tensor:
        wanted.put(None)
        thread.join()
        return given.get()

    return get


def _in_a_cycle(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    cycle: list[Any] = [tensor]
    cycle.append(cycle)
    return lambda: cycle[0]


# what is kept of a tensor of images, and how to come to their first bytes from it
KEEPERS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "the tensor": (lambda image: image, lambda kept: kept),
    "a row": (lambda image: image[0], lambda kept: kept),
    "a view": (lambda image: image.view(-1)[1:], lambda kept: kept.as_strided((8,), (1,), 0)),
    "another dtype": (lambda image: image.view(torch.int8), lambda kept: kept.view(torch.uint8)),
    "numpy": (torch.Tensor.numpy, torch.from_numpy),
    "dlpack": (dlpack.to_dlpack, dlpack.from_dlpack),  # type: ignore[attr-defined]  # both there
    "storage": (torch.Tensor.untyped_storage, lambda kept: torch.tensor([], dtype=torch.uint8).set_(kept)),
    "a thread": (_through_a_thread, lambda kept: kept()),
    "a cycle": (_in_a_cycle, lambda kept: kept()),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_any_part_keeps_a_batch(bench: Bench, keeper: str) -> None:
    """Any one thing made from a batch keeps its memory; when that is gone, too, the slot goes back."""
    server = bench.server(steps=12, slot_count=3)
    batches = iter(bench.dataset(server))
    first = next(batches)
    wanted = first["img"].flatten()[:8].tolist()
    part, back = KEEPERS[keeper]
    kept = part(first["img"])
    del first
    for _ in range(5):
        next(batches)
    assert (0, 1) not in server.releases
    got = back(kept)
    assert got.flatten()[:8].tolist() == wanted
    del got, kept
    gc.collect()
    next(batches)
    batches.return_now()  # type: ignore[attr-defined]  # of a FeedIterator
    server.wait_for(lambda: any(slot == 0 for slot, _ in server.releases))


def _keep_all(batches: Iterable[Any], kept: list[Any]) -> None:
    for batch in batches:
        kept.append(batch)  # noqa: PERF402 - so that they are there after an error


def _receive(source: Any, back: Any) -> None:
    tensor = source.get()
    back.put(int(tensor.long().sum()))


@pytest.mark.slow  # a process of its own
def test_what_is_sent_to_a_process_is_right(bench: Bench) -> None:
    """A tensor sent to another process has the batch's values there, however often its slot was used since."""
    context: Any = torch.multiprocessing.get_context("fork")
    source, back = context.Queue(), context.Queue()
    process = context.Process(target=_receive, args=(source, back))
    process.start()
    try:
        batches = iter(bench.dataset(bench.server(steps=12, slot_count=3)))
        first = next(batches)
        wanted = int(first["img"].long().sum())
        source.put(first["img"])
        del first
        for _ in range(6):
            next(batches)
        assert back.get(timeout=PATIENT_S) == wanted
    finally:
        process.join(PATIENT_S)
        process.close()
        for one in (source, back):
            one.close()
            one.join_thread()
        resource_sharer.stop(10)  # torch hands over descriptors by it


def _saved(batch: dict[str, Any]) -> Any:
    torch.save(dict(batch), file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "torch.save": _saved,
    "deepcopy": copy.deepcopy,
    "clone": lambda batch: {name: one.clone() if hasattr(one, "clone") else one for name, one in batch.items()},
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_do_not_hold_the_slot(bench: Bench, how: str) -> None:
    """What was pickled, saved, cloned or copied deeply is private: right, and the slot free."""
    server = bench.server(steps=8, slot_count=3)
    batches = iter(bench.dataset(server, keys=True))
    first = next(batches)
    made = COPIES[how](first)
    del first
    for _ in range(5):
        next(batches)
    server.wait_for(lambda: len(server.releases) >= 3)
    check_rich(made, _wanted(0))


@pytest.mark.parametrize("worker_count", [0, 2])
def test_a_list_through_a_dataloader_is_the_epoch(bench: Bench, worker_count: int) -> None:
    """``list(DataLoader(dataset, batch_size=None))`` is right with and without workers."""
    dataset = bench.dataset(bench.server(steps=11, slot_count=3), keys=True)
    kept = list(DataLoader(dataset, batch_size=None, num_workers=worker_count))
    assert sorted(ids(batch) for batch in kept) == [_wanted(step) for step in range(11)]
    for batch in kept:
        check_rich(batch, ids(batch))


def test_too_many_copies_are_an_error(bench: Bench) -> None:
    """Past ``copy_bytes`` an error says how many batches are held, where, and what to do; the position is right."""
    dataset = bench.dataset(bench.server(steps=20, slot_count=3), copy_bytes=5_000)
    kept: list[Any] = []
    with pytest.raises(BatchesHeldError, match="plus 2 in slots") as caught:
        _keep_all(dataset, kept)
    held = len(kept)
    assert 3 < held < 20
    assert f"got {held - 2 + 1} with" in str(caught.value)
    assert "copy_bytes" in str(caught.value)
    assert "drop batches" in str(caught.value)
    assert dataset.state_dict()["step"] == held
    for step, batch in enumerate(kept):
        assert ids(batch) == _wanted(step)
    del kept, batch, caught
    dataset.load_state_dict(dataset.state_dict())
    assert [ids(batch) for batch in dataset] == [_wanted(step) for step in range(held, 20)]


def test_copies_that_are_dropped_count_no_longer(bench: Bench) -> None:
    """The limit is on copies that live: a window of batches may go through an epoch of any length."""
    dataset = bench.dataset(bench.server(steps=60, slot_count=3), copy_bytes=20_000)
    window: list[Any] = []
    for step, batch in enumerate(dataset):
        window = [*window[-5:], batch]
        for offset, one in enumerate(reversed(window)):
            assert ids(one) == _wanted(step - offset)
    del window, batch, one
    assert dataset._runtime.copies.live_bytes == 0


def test_copies_on_request_have_no_limit(bench: Bench) -> None:
    """``copy=True`` says that every batch is private, and asks for no limit."""
    kept = list(bench.dataset(bench.server(steps=20, slot_count=3), copy=True, copy_bytes=0))
    assert [ids(batch) for batch in kept] == [_wanted(step) for step in range(20)]


def test_several_epochs_can_be_kept(bench: Bench) -> None:
    """Batches of earlier epochs stay right while later ones run, and count against the limit."""
    server = bench.server(steps=5, slot_count=3)
    dataset = bench.dataset(server)
    epochs = [list(dataset) for _ in range(3)]
    for epoch, kept in enumerate(epochs):
        assert [ids(batch)[0] - epoch * 100_000_000 for batch in kept] == [step * BATCH_SIZE for step in range(5)]
    held_bytes = dataset._runtime.copies.live_bytes
    assert held_bytes > 0
    del epochs, kept
    gc.collect()
    assert dataset._runtime.copies.live_bytes == 0


def test_a_late_return_is_harmless(bench: Bench) -> None:
    """Batches that outlive a restart of the daemon, or their session, are right, and end without a word."""
    server = bench.server(steps=12, slot_count=4)
    dataset = bench.dataset(server)
    batches = iter(dataset)
    kept = [next(batches), next(batches)]
    server.restart()
    more = [next(batches), next(batches)]
    assert [ids(batch) for batch in kept + more] == [_wanted(step) for step in range(4)]
    del kept
    rest = list(batches)
    assert [ids(batch) for batch in rest] == [_wanted(step) for step in range(4, 12)]
    assert dataset.stats()["reconnects"] == 1
    dataset.close()
    assert [ids(batch) for batch in more] == [_wanted(2), _wanted(3)]
    del more, rest
    assert len(list(dataset)) == 12


def test_batches_outlive_their_dataset(bench: Bench) -> None:
    """A dataset that is dropped with a pass under way leaves batches right, and its session ends with the last."""
    server = bench.server(steps=12, slot_count=3)
    dataset = FeedDataset("s3://bucket/train/", batch_size=BATCH_SIZE, address=server.address)
    batches = iter(dataset)
    kept = [next(batches) for _ in range(5)]
    del batches, dataset
    gc.collect()
    assert [ids(batch) for batch in kept] == [_wanted(step) for step in range(5)]
    assert server.lifelines_ended == 0
    del kept
    gc.collect()
    server.wait_for(lambda: server.lifelines_ended == 1)


def test_who_deals_is_looked_for_without_keeping_variables(bench: Bench) -> None:
    """With accelerate imported, too, a dataset ends when its last name goes, not when the function that had it ends."""
    importlib.import_module("accelerate")
    server = bench.server(steps=4, slot_count=3)
    dataset = FeedDataset("s3://bucket/train/", batch_size=BATCH_SIZE, address=server.address)
    batches = iter(dataset)
    first = next(batches)
    assert ids(first) == _wanted(0)
    ended = weakref.ref(dataset)
    del batches, dataset, first
    gc.collect()
    assert ended() is None
    server.wait_for(lambda: server.lifelines_ended == 1)


def test_a_dropped_pass_ends_and_its_session_serves_the_next(bench: Bench) -> None:
    """A pass that is dropped ends its stream by itself; the next pass goes on with the same session."""
    server = bench.server(steps=50, slot_count=3)
    dataset = bench.dataset(server)
    for _ in range(3):
        batches = iter(dataset)
        next(batches)
        del batches
        server.wait_for(lambda: all(session.streams_open == 0 for session in server.sessions.values()))
    assert len(server.opens) == 1


def test_what_was_dropped_by_the_end_is_returned_at_the_end(bench: Bench) -> None:
    """After a pass the daemon holds nothing for it but the last batch, which the loop still names."""
    server = bench.server(steps=6, slot_count=64)
    dataset = bench.dataset(server, prefetch=64)
    for batch in dataset:
        last = batch
    assert ids(last) == _wanted(5)
    server.wait_for(lambda: server.leased_count == 1)


def test_no_lock_is_taken_where_batches_die(bench: Bench) -> None:
    """Passes and batches that die in a garbage collection, while another call holds the lock, wait for nobody."""
    server = bench.server(steps=8, slot_count=3)
    dataset = bench.dataset(server)
    batches = iter(dataset)
    cycle: list[Any] = [batches, next(batches), next(batches)]
    cycle.append(cycle)
    del batches, cycle
    done = threading.Event()

    def collect() -> None:
        with dataset._runtime._lock:
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(PATIENT_S), "a finalizer waits for a lock"
    assert len(list(dataset)) == 8


@pytest.mark.parametrize("wrong", [-1, 1.5, None, True])
def test_the_limit_is_a_number(bench: Bench, wrong: Any) -> None:
    """Anything but a number of bytes is refused by the constructor."""
    with pytest.raises(BadOptionError, match="copy_bytes"):
        bench.dataset("unix:///nowhere", copy_bytes=wrong)


def test_fork_leaves_the_parents_batches_alone(bench: Bench) -> None:
    """A child that drops what it inherited returns nothing of its parent's."""
    server = bench.server(steps=10, slot_count=3)
    batches = iter(bench.dataset(server))
    kept = [next(batches), next(batches)]
    context = multiprocessing.get_context("fork")
    child = context.Process(target=kept.clear)
    child.start()
    child.join(PATIENT_S)
    assert child.exitcode == 0
    child.close()
    rest = list(batches)
    assert [ids(batch) for batch in kept + rest] == [_wanted(step) for step in range(10)]
