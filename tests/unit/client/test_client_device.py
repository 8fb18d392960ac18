"""DeviceLoader without a GPU: the CPU path, and the copy thread with a copier that copies on the host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from feedd_client import BadOptionError, BadSampleError, DeviceLoader, Normalize, Ragged
from feedd_client.copier import map_tensors, tensors_of
from feedd_client.device import CopyLane
from tests.fakes.feed_client import check_rich, ids
from tests.fakes.feed_script import Fault

if TYPE_CHECKING:
    from feedd_client.shm import Mapping
    from tests.fakes.feed_client import Bench

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


class _Event:
    """An event that has happened."""

    def synchronize(self) -> None:
        """Return."""


class _HostCopier:
    """Copies to private host memory, as a device would; says when it read what."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.copied: list[int] = []

    def enter_thread(self) -> None:
        """Take note of the thread."""
        self.threads.add(threading.current_thread().name)

    def copy(self, batch: object, mapping: Mapping | None) -> tuple[object, Any, Any]:
        """Copy."""
        moved = map_tensors(batch, torch.clone)
        self.copied.append(int(next(iter(tensors_of(moved))).numel()))
        return moved, _Event(), _Event()


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


def test_any_iterable_of_batches_will_do(bench: Bench) -> None:
    """A torch DataLoader over a dataset works as a source, epochs included."""
    dataset = bench.dataset(bench.server(steps=3))
    loader = DeviceLoader(DataLoader(dataset, batch_size=None), device="cpu")
    loader.set_epoch(2)
    batches = [ids(batch) for batch in loader]
    assert batches[0][0] == 200_000_000
    assert len(batches) == 3


def test_the_copy_thread_keeps_its_depth_and_copies_before_it_asks_again(bench: Bench) -> None:
    """At most ``depth`` batches are staged ahead, each read completely before its slot can go back."""
    server = bench.server(steps=8, slot_count=2)
    dataset = bench.dataset(server)
    batches = dataset.start_pass(copy=False)
    batches.auto_commit = False
    copier = _HostCopier()
    lane = CopyLane(dataset, batches, copier, depth=2)
    for step in range(8):
        staged = lane.staged.get(timeout=10)
        assert len(copier.copied) <= step + 2
        check_rich(staged.batch, list(range(step * 4, step * 4 + 4)))
        assert staged.position.step == step + 1
        assert dataset.state_dict()["step"] == 0  # staged is not taken
        lane.taken(staged.position)
    assert lane.staged.get(timeout=10).over
    lane.stop()
    assert copier.threads == {"feedd-device-copy"}
    assert batches.end == (0, 8)


@pytest.mark.slow  # waits for real time to pass
def test_stopping_the_copy_thread_interrupts_its_wait(bench: Bench) -> None:
    """A pass left early ends the thread even while it waits for a daemon that sends nothing."""
    server = bench.server(steps=8, faults=(Fault(2, "slow", delay_s=1.0),))
    dataset = bench.dataset(server)
    lane = CopyLane(dataset, dataset.start_pass(copy=False), _HostCopier(), depth=4)
    lane.staged.get(timeout=10)
    lane.stop()
    assert not any(thread.name == "feedd-device-copy" for thread in threading.enumerate())
    assert len(list(dataset)) == 8


def test_errors_cross_the_copy_thread(bench: Bench) -> None:
    """What fails in the thread is handed to the trainer as it is, after the batches before it."""
    said = {"kind": "bad-sample", "message": "expected a picture, got soup"}
    dataset = bench.dataset(bench.server(steps=8, faults=(Fault(1, "error", error=said),)))
    lane = CopyLane(dataset, dataset.start_pass(copy=False), _HostCopier(), depth=4)
    assert lane.staged.get(timeout=10).error is None
    assert isinstance(lane.staged.get(timeout=10).error, BadSampleError)
    lane.stop()


def test_arguments_are_checked() -> None:
    """A depth of 0, and a GPU where there is none, are said."""
    with pytest.raises(BadOptionError):
        DeviceLoader([], depth=0)
    if not torch.cuda.is_available():
        with pytest.raises(BadOptionError, match="CUDA"):
            iter(DeviceLoader([], device="cuda"))
