"""DeviceLoader over many steps: memory and events of the simulated device stay flat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import DeviceLoader, Normalize
from feedd_client.adapters import jax_iterator, numpy_iterator
from tests.fakes import other_libraries as fakes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench

_LONG = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1800)]  # it computes all the time
STEPS = pytest.mark.parametrize("steps", [40, pytest.param(10_000, marks=_LONG)])


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@STEPS
@pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_device_memory_is_flat(cuda: Cuda, steps: int, static: bool) -> None:
    """After the first steps the device's memory grows no more, and neither do its events; every batch is right."""

    def source() -> Iterator[dict[str, torch.Tensor]]:
        for step in range(steps):
            yield {"img": torch.full((2, 8, 8, 3), step % 251, dtype=torch.uint8), "cls": torch.full((2,), step)}

    loader = DeviceLoader(source(), "cuda", Normalize((0.0,) * 3, (1 / 255,) * 3), static=static)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    warm: tuple[int, int] | None = None
    for step, batch in enumerate(loader):
        wrong += (batch["cls"] != step).sum()
        if step % 10 == 0:
            wrong += ((batch["img"] - step % 251).abs() > 0.01).sum()
        del batch
        if step == 20:
            warm = cuda.allocator.reserved_bytes, cuda.machine.calls["cudaEventCreate"]
    assert warm is not None
    assert int(wrong.item()) == 0
    # which blocks are free in time differs from step to step: a few more, and not one for each step
    assert cuda.allocator.reserved_bytes - warm[0] <= 16 * 4096
    assert cuda.machine.calls["cudaEventCreate"] - warm[1] == 0
    assert loader.stats()["h2d_bytes"] == steps * (384 + 16)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("adapter", [numpy_iterator, jax_iterator])
def test_host_memory_is_flat(bench: Bench, adapter: Callable[[Any], Iterator[dict[str, Any]]]) -> None:
    """10,000 batches through an adapter leave no memory behind, and every one is right."""
    server = bench.server(steps=1000, slot_count=4)
    dataset = bench.dataset(server)
    warm_bytes = 0
    with fakes.installed("jax", **fakes.jax()):
        for epoch in range(10):
            for step, batch in enumerate(adapter(dataset)):
                first = epoch * 100_000_000 + step * 4
                assert batch["cls"].tolist() == list(range(first, first + 4))
            if epoch == 0:
                warm_bytes = _resident_bytes()
    assert _resident_bytes() - warm_bytes < 16 << 20
