"""Around the copies: sources without state, other accelerators, default devices, garbage, registration that fails."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from feedd_client import BadOptionError, DeviceLoader, FeedError, StateError
from feedd_client.agreement import Join
from feedd_client.iterator import FeedIterator
from feedd_client.lane import CopyLane, DevicePass
from feedd_client.outputs import Outputs
from feedd_client.progress import Progress
from tests.budget import PATIENT_S
from tests.fakes.feed_client import ids
from tests.fakes.host_copier import LateCopier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench


class Pair(NamedTuple):
    """A batch of two."""

    first: torch.Tensor
    second: list[torch.Tensor]


# ---------------------------------------------------------------------- state


def test_a_source_without_state_has_none() -> None:
    """Over a plain iterable the state is empty, may be loaded again, and a state of another source is refused."""
    loader = DeviceLoader([torch.arange(3)], "cpu")
    assert len(list(loader)) == 1
    assert loader.state_dict() == {}
    loader.load_state_dict({})
    with pytest.raises(StateError, match="load_state_dict"):
        loader.load_state_dict({"epoch": 3})


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_dataloader_without_workers_keeps_its_datasets_state(bench: Bench, cuda: Cuda, device: str) -> None:
    """Through DataLoader(dataset, batch_size=None), too, the state counts what the trainer took."""
    server = bench.server(steps=9)
    loader = DeviceLoader(DataLoader(bench.dataset(server), batch_size=None), device)
    batches = iter(loader)
    seen = [number for _ in range(3) for number in ids(next(batches))]
    state = loader.state_dict()
    assert state["step"] == 3
    loader.close()
    resumed = DeviceLoader(DataLoader(bench.dataset(server), batch_size=None), device)
    resumed.load_state_dict(state)
    assert seen + [number for batch in resumed for number in ids(batch)] == list(range(36))


def test_a_batch_whose_transform_failed_was_not_taken(bench: Bench) -> None:
    """On the CPU as on a GPU, a state taken after a transform's error still has that batch before it."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no such colour")

    loader = DeviceLoader(bench.dataset(bench.server(steps=4)), "cpu", fail)
    with pytest.raises(ValueError, match="colour"):
        next(iter(loader))
    assert loader.state_dict()["step"] == 0
    assert loader.stats()["batches"] == 0


# ---------------------------------------------------------------------- devices


def test_other_accelerators_get_whole_batches() -> None:
    """On a device that is neither CPU nor CUDA every tensor of every container is moved; "meta" stands in for one."""
    (batch,) = DeviceLoader([Pair(torch.zeros(2), [torch.zeros(3)])], "meta")
    assert type(batch) is Pair
    assert batch.first.is_meta
    assert batch.second[0].is_meta


def test_without_a_device_the_current_accelerator_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is the accelerator of the machine, and the CPU where there is none."""
    if not torch.accelerator.is_available():
        (batch,) = DeviceLoader([{"x": torch.zeros(2)}])
        assert batch["x"].is_cpu
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    (batch,) = DeviceLoader([{"x": torch.zeros(2)}])
    assert batch["x"].is_meta


def test_a_default_device_does_not_reach_the_clients_own_tensors(bench: Bench) -> None:
    """A trainer that makes its tensors on a device by default reads, counts epochs and saves as without."""
    try:
        torch.set_default_device("meta")
        dataset = bench.dataset(bench.server(steps=3, uneven="pad"), uneven="pad", topology=None)
        loader = DeviceLoader(dataset, "cpu")
        seen = [[ids(batch) for batch in loader] for _ in range(2)]
        state = loader.state_dict()
    finally:
        torch.set_default_device(None)
    assert seen[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert seen[1] != seen[0]
    assert state["epoch"] == 2


def test_a_fork_after_cuda_began_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA cannot be used because the process was forked, the error says that, and not that there is no GPU."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(FeedError, match="fork"):
        iter(DeviceLoader([], "cuda"))


def test_transforms_must_be_callables() -> None:
    """One callable or several; anything else is said at construction."""
    with pytest.raises(BadOptionError, match="transforms"):
        DeviceLoader([], "cpu", ["resize"])  # type: ignore[list-item]  # that is the mistake


# ---------------------------------------------------------------------- the garbage collector


class _Work:
    def wait(self) -> None:
        """Return."""


class _Agreement:
    """A group of one rank, that collects garbage in the middle of a post."""

    def __init__(self) -> None:
        self.doomed: list[Any] = []

    def least(self, values: list[int]) -> tuple[torch.Tensor, Any]:
        """Answer with what was said."""
        if self.doomed:
            self.doomed.clear()
            gc.collect()
        return torch.tensor(values), _Work()


@pytest.mark.timeout(30)
def test_a_pass_collected_in_its_own_copy_thread_ends(bench: Bench) -> None:
    """A pass in a reference cycle may be collected while its copy thread holds a lock that ending it asks for."""
    dataset = bench.dataset(bench.server(steps=50))
    batches, agreement = dataset.start_pass(copy=False), _Agreement()
    assert isinstance(batches, FeedIterator)
    batches._plan = replace(batches._plan, join=Join(agreement, 0))  # type: ignore[arg-type]  # a group of one
    progress = Progress(dataset)
    lane = CopyLane(batches, LateCopier(), 2, progress)
    begun = DevicePass(progress, lane, Outputs(None))
    lane.staged.get(timeout=PATIENT_S)
    cycle: list[Any] = [begun]
    cycle.append(cycle)
    agreement.doomed.append(cycle)
    del begun, cycle
    lane._free.put(None)  # wakes the thread, as a trainer that takes a batch would
    lane._thread.join(PATIENT_S)
    assert not lane._thread.is_alive()


# ---------------------------------------------------------------------- registration and buffers


@pytest.mark.parametrize("cuda", ["lazy", "random-0"], indirect=True)
def test_refused_registration_is_no_loss(bench: Bench, cuda: Cuda, caplog: pytest.LogCaptureFixture) -> None:
    """Where CUDA refuses to register the arena, or does not call it pinned, batches arrive through the ring."""
    cuda.host.refuses = 801
    with caplog.at_level(logging.WARNING):
        seen = [number for batch in DeviceLoader(bench.dataset(bench.server(steps=6)), "cuda") for number in ids(batch)]
    assert seen == list(range(24))
    assert "error 801" in caplog.text
    cuda.host.refuses = 0
    cuda.host.hides_registered = True
    with caplog.at_level(logging.WARNING):
        seen = [number for batch in DeviceLoader(bench.dataset(bench.server(steps=6)), "cuda") for number in ids(batch)]
    assert seen == list(range(24))
    assert "does not report it pinned" in caplog.text


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_pinned_buffers_grow_a_few_times_only(cuda: Cuda) -> None:
    """Batches that vary in size ask for pinned memory as often as their size doubles, for each of two buffers."""
    for _ in DeviceLoader([{"x": torch.zeros(1 + size, dtype=torch.uint8)} for size in range(0, 4000, 40)], "cuda"):
        pass
    assert cuda.machine.calls["cudaHostAlloc"] <= 2 * 7


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_events_are_used_again(cuda: Cuda) -> None:
    """However many batches there are, no more events are made than the places need."""
    for _ in DeviceLoader([{"x": torch.zeros(8)} for _ in range(50)], "cuda", device_prefetch=3):
        pass
    assert cuda.machine.calls["cudaEventCreate"] == 3 * 4


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_the_host_waits_for_copies_without_spinning(cuda: Cuda) -> None:
    """Threads that wait for a copy sleep in the driver: a spinning one takes a core that decode workers need."""
    for _ in DeviceLoader([{"x": torch.zeros(8)} for _ in range(50)], "cuda", device_prefetch=3):
        pass
    assert cuda.machine.calls["cudaEventSynchronize"] > 0
    assert cuda.machine.calls["waits that spin"] == 0


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_the_arena_is_unregistered_on_the_device_that_registered_it(bench: Bench, cuda: Cuda) -> None:
    """Whichever thread drops the last view, no context is made on another device."""
    devices = []
    unregister = cuda.host.cudaHostUnregister

    def noted(address: int) -> int:
        devices.append(torch.cuda.current_device())
        return unregister(address)

    cuda.host.cudaHostUnregister = noted  # type: ignore[method-assign]  # to look where it is called
    dataset = bench.dataset(bench.server(steps=3))
    for _ in DeviceLoader(dataset, "cuda:1"):
        pass
    ending = threading.Thread(target=dataset.close)
    ending.start()
    ending.join()
    del dataset
    gc.collect()
    assert devices == [1]


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_the_trainers_modes_do_not_reach_the_copy_thread(cuda: Cuda) -> None:
    """Transforms build no graph, and take no team of threads beside the trainer's."""
    weight = torch.nn.Parameter(torch.ones(()))
    modes: list[tuple[bool, int]] = []

    def note(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        modes.append((weight.mul(2).requires_grad, torch.get_num_threads()))
        return batch

    def source() -> Iterator[dict[str, torch.Tensor]]:
        yield {"x": torch.zeros(2)}

    for _ in DeviceLoader(source(), "cuda", note):
        pass
    assert modes == [(False, 1)]
    assert torch.is_grad_enabled()


def test_an_epoch_is_told_to_whatever_takes_it() -> None:
    """Frameworks call set_epoch of any loader that has it: over a plain list it is the epoch of the transforms."""

    class Counting(IterableDataset[dict[str, torch.Tensor]]):
        epoch = 0

        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            return iter(())

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    def drawn(batch: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"epoch": context.epoch, **batch}

    loader = DeviceLoader([{"x": torch.zeros(1)}], "cpu", drawn)
    loader.set_epoch(5)
    assert [batch["epoch"] for batch in loader] == [5]
    around = DeviceLoader(DataLoader(Counting(), batch_size=None), "cpu")
    around.set_epoch(7)
    assert around.dataset.epoch == 7
