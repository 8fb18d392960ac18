"""DeviceLoader without a GPU: the CPU path, and the copy thread with a copier that copies on the host."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from feedd_client import BadOptionError, BadSampleError, DeviceLoader, Normalize, Ragged
from feedd_client.iterator import FeedIterator
from feedd_client.lane import CopyLane, Staged
from feedd_client.progress import Progress
from tests.budget import PATIENT_S
from tests.fakes.feed_client import check_rich, ids
from tests.fakes.feed_script import Fault
from tests.fakes.host_copier import LateCopier

if TYPE_CHECKING:
    from feedd_client import FeedDataset
    from feedd_client.transforms import TransformContext
    from tests.fakes.feed_client import Bench

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def test_cpu_batches_are_the_trainers_and_transformed(bench: Bench) -> None:
    """On the CPU every batch may be kept, transforms are applied, and state and len are the dataset's."""
    dataset = bench.dataset(bench.server(steps=9, slot_count=2))
    loader = DeviceLoader(dataset, device="cpu", transforms=[Normalize(MEAN, STD, fields=["img"])])
    plain = bench.dataset(bench.server(steps=9), copy=True)
    kept = list(loader)
    for one, two in zip(kept, plain, strict=True):
        assert torch.equal(one["img"], Normalize(MEAN, STD)({"img": two["img"]})["img"])
        assert ids(one) == ids(two)
        assert isinstance(one["raw"], Ragged)
    assert loader.state_dict() == dataset.state_dict()
    assert len(loader) == 9
    assert loader.stats()["batches"] == 9
    loader.set_epoch(5)
    assert dataset.state_dict()["epoch"] == 5


def test_cpu_state_counts_what_was_taken(bench: Bench) -> None:
    """A state taken through the loader resumes right after the last batch it yielded."""
    server = bench.server(steps=5)
    loader = DeviceLoader(bench.dataset(server), device="cpu")
    batches = iter(loader)
    seen = ids(next(batches)) + ids(next(batches))
    resumed = DeviceLoader(bench.dataset(server), device="cpu")
    resumed.load_state_dict(loader.state_dict())
    for batch in resumed:
        seen += ids(batch)
    assert seen == list(range(20))


def test_a_loader_records_the_times_of_its_own_loop(bench: Bench) -> None:
    """One step for each batch that the trainer takes, however many the dataset's iterator gave in advance."""
    dataset = bench.dataset(bench.server(steps=5))
    taken = list(itertools.islice(DeviceLoader(dataset, device="cpu"), 3))
    times = dataset._stats.step_times
    assert (len(taken), times.steps, times.device, times.unpinned) == (3, 3, "cpu", False)
    plain = bench.dataset(bench.server(steps=5))
    assert len(list(plain)) == plain._stats.step_times.steps == 5
    assert plain._stats.step_times.device == ""


def test_any_iterable_of_batches_will_do(bench: Bench) -> None:
    """A torch DataLoader over a dataset works as a source, epochs included."""
    dataset = bench.dataset(bench.server(steps=3))
    loader = DeviceLoader(DataLoader(dataset, batch_size=None), device="cpu")
    loader.set_epoch(2)
    batches = [ids(batch) for batch in loader]
    assert batches[0][0] == 200_000_000
    assert len(batches) == 3


def test_the_batch_size_is_the_sources_or_its_datasets(bench: Bench) -> None:
    """Training libraries ask a loader for its batch size, whatever it is made of; None where nothing tells it."""
    dataset = bench.dataset(bench.server(steps=1))
    assert DeviceLoader(dataset, device="cpu").batch_size == 4
    assert DeviceLoader(DataLoader(dataset, batch_size=None), device="cpu").batch_size == 4
    assert DeviceLoader(DataLoader(TensorDataset(torch.zeros(12)), batch_size=3), device="cpu").batch_size == 3
    assert DeviceLoader([torch.zeros(2)], device="cpu").batch_size is None


def test_passes_over_a_source_without_epochs_are_counted() -> None:
    """Each pass over a plain list is the next epoch for its transforms."""
    epochs: list[int] = []

    def note(batch: torch.Tensor, context: TransformContext) -> torch.Tensor:
        epochs.append(context.epoch)
        return batch

    loader = DeviceLoader([torch.zeros(2)], device="cpu", transforms=note)
    for _ in range(3):
        list(loader)
    assert epochs == [0, 1, 2]


def _lane(dataset: FeedDataset, copier: LateCopier, prefetch: int) -> CopyLane:
    return CopyLane(dataset.start_pass(copy=False), copier, prefetch, Progress(dataset))


def _read(staged: Staged) -> None:
    assert staged.slot is not None
    staged.slot.copied.synchronize()


def test_the_copy_thread_stays_within_its_places(bench: Bench) -> None:
    """No more batches are staged ahead than there are places, and none counts as taken before it is."""
    dataset = bench.dataset(bench.server(steps=8, slot_count=2))
    copier = LateCopier()
    lane = _lane(dataset, copier, 2)
    for step in range(8):
        staged = lane.staged.get(timeout=PATIENT_S)
        assert copier.begun <= step + 2
        _read(staged)
        check_rich(staged.batch, list(range(step * 4, step * 4 + 4)))
        assert staged.position.step == step + 1
        assert dataset.state_dict()["step"] == 0  # staged is not taken
        lane.taken(staged)
    assert lane.staged.get(timeout=PATIENT_S).over
    lane.stop()
    assert copier.threads == {"feedd-device-copy"}
    assert isinstance(lane.batches, FeedIterator)
    assert lane.batches.end == (0, 8)


def test_a_slot_goes_back_only_after_the_device_has_read_it(bench: Bench) -> None:
    """Copies that are as late as they may be read every batch whole, although two slots serve six batches ahead."""
    dataset = bench.dataset(bench.server(steps=6, slot_count=2))
    lane = _lane(dataset, LateCopier(), 6)
    staged = [lane.staged.get(timeout=PATIENT_S) for _ in range(6)]  # each slot has been used three times by now
    for step, one in enumerate(staged):
        _read(one)
        check_rich(one.batch, list(range(step * 4, step * 4 + 4)))
    lane.stop()


def test_a_copied_slot_goes_back_while_the_trainer_is_busy(bench: Bench) -> None:
    """With every place taken, and no batch asked for, the daemon has the slots of all copied batches again."""
    server = bench.server(steps=10, slot_count=4)
    dataset = bench.dataset(server)
    lane = _lane(dataset, LateCopier(), 2)
    staged = [lane.staged.get(timeout=PATIENT_S) for _ in range(2)]
    assert all(one.error is None for one in staged)
    server.wait_for(lambda: len(server.releases) == 2)
    lane.stop()


@pytest.mark.slow  # waits for real time to pass
def test_stopping_the_copy_thread_interrupts_its_wait(bench: Bench) -> None:
    """A pass left early ends the thread even while it waits for a daemon that sends nothing."""
    server = bench.server(steps=8, faults=(Fault(2, "slow", delay_s=1.0),))
    dataset = bench.dataset(server)
    lane = _lane(dataset, LateCopier(), 4)
    lane.staged.get(timeout=PATIENT_S)
    lane.stop()
    assert not any(thread.name == "feedd-device-copy" for thread in threading.enumerate())
    assert len(list(dataset)) == 8


def test_errors_cross_the_copy_thread(bench: Bench) -> None:
    """What fails in the thread is handed to the trainer as it is, after the batches before it."""
    said = {"kind": "bad-sample", "message": "expected a picture, got soup"}
    dataset = bench.dataset(bench.server(steps=8, faults=(Fault(1, "error", error=said),)))
    lane = _lane(dataset, LateCopier(), 4)
    assert lane.staged.get(timeout=PATIENT_S).error is None
    assert isinstance(lane.staged.get(timeout=PATIENT_S).error, BadSampleError)
    lane.stop()


def test_arguments_are_checked() -> None:
    """A prefetch of 0, and a GPU where there is none, are said."""
    with pytest.raises(BadOptionError, match="device_prefetch"):
        DeviceLoader([], device_prefetch=0)
    if not torch.cuda.is_available():
        with pytest.raises(BadOptionError, match="CUDA"):
            iter(DeviceLoader([], device="cuda"))
