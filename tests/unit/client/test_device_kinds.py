"""DeviceLoader on accelerators that are not CUDA, and on devices without streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import BadOptionError, DeviceLoader, Normalize, streams
from tests.budget import PATIENT_S
from tests.fakes.cuda.fixture import simulated
from tests.fakes.feed_client import BATCH_SIZE, ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench


@pytest.fixture(params=["lazy", "late-copies", "random-0", "random-1"])
def xpu(request: pytest.FixtureRequest) -> Iterator[Cuda]:
    """Simulated devices of another accelerator, which has what ``torch.accelerator`` has."""
    with simulated(request.param, "xpu") as (found, _):
        yield found


def test_another_accelerator_copies_on_its_own_stream(bench: Bench, xpu: Cuda) -> None:
    """Streams, events and pinned buffers of torch.accelerator do what CUDA's do; nothing is registered."""
    server = bench.server(steps=12, slot_count=2)

    def lags(batch: dict[str, Any]) -> dict[str, Any]:
        xpu.sleep()
        return {**batch, "cls": batch["cls"] + 0}

    wrong = torch.zeros((), dtype=torch.int64, device="xpu")
    loader = DeviceLoader(bench.dataset(server), transforms=lags)
    for step, batch in enumerate(loader):
        xpu.sleep()
        stamps = torch.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE, device="xpu")
        assert batch["img"].device == torch.device("xpu", 0)
        wrong += (batch["cls"] != stamps).sum()
        wrong += (batch["img"][:, 0, 0, 0] != (stamps * 7) % 251).sum()
        del batch
    assert int(wrong.item()) == 0
    assert xpu.machine.calls["cudaHostRegister"] == 0
    assert xpu.machine.calls["pageable copies"] == 13  # of this test's own tensors
    assert loader.stats()["h2d_s"] > 0
    assert [key[1:] for key in streams._copy_streams] == [("xpu", 0)]


def test_an_accelerator_of_another_machine_is_refused(xpu: Cuda) -> None:
    """A device that this machine does not have is an error that says so."""
    with pytest.raises(BadOptionError, match=r"hpu.*got xpu"):
        iter(DeviceLoader([], "hpu"))


def test_an_older_torch_copies_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch.accelerator cannot set devices, other accelerators than CUDA are used without streams."""
    monkeypatch.delattr(torch.accelerator, "set_device_index")
    assert streams.streams_of(torch.device("xpu")) is None


def test_transforms_on_the_cpu_run_beside_the_trainer(bench: Bench) -> None:
    """The copy thread transforms at most device_prefetch batches in advance, and none counts before its turn."""
    names: list[str] = []
    made = threading.Semaphore(0)

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        names.append(threading.current_thread().name)
        made.release()
        return batch

    dataset = bench.dataset(bench.server(steps=8, slot_count=4))
    loader = DeviceLoader(dataset, "cpu", [Normalize((0.5,) * 3, (0.5,) * 3, fields=["img"]), note], device_prefetch=2)
    batches = iter(loader)
    for _ in range(2):
        assert made.acquire(timeout=PATIENT_S)
    assert (len(names), dataset.state_dict()["step"]) == (2, 0)
    first = next(batches)
    assert dataset.state_dict()["step"] == 1
    assert ids(first) == [0, 1, 2, 3]
    assert [number for batch in batches for number in ids(batch)] == list(range(4, 32))
    assert set(names) == {"feedd-device-copy"}
    assert ids(first) == [0, 1, 2, 3]
    assert not any(thread.name == "feedd-device-copy" for thread in threading.enumerate())


def test_without_transforms_the_cpu_needs_no_thread(bench: Bench) -> None:
    """A loader that only passes batches on does so in the trainer's thread."""
    batches = iter(DeviceLoader(bench.dataset(bench.server(steps=3)), "cpu"))
    next(batches)
    assert not any(thread.name == "feedd-device-copy" for thread in threading.enumerate())
