"""One copy for a batch that lies in one slot, what it costs in memory, and what stats() tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import DeviceLoader
from feedd_client.block_copy import blocks_of
from tests.fakes.feed_client import check_rich

if TYPE_CHECKING:
    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench

STEPS = 6


def _host(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.cpu() if isinstance(value, torch.Tensor) else value.to("cpu") if hasattr(value, "to") else value
        for name, value in batch.items()
    }


@pytest.mark.parametrize("cuda", ["lazy", "random-0"], indirect=True)
@pytest.mark.parametrize("refused", [0, 801])
def test_a_batch_in_one_slot_is_copied_at_once(bench: Bench, cuda: Cuda, refused: int) -> None:
    """All fields of a batch cross the bus in one copy, from the arena or the pinned ring, and each is right."""
    cuda.host.refuses = refused
    loader = DeviceLoader(bench.dataset(bench.server(steps=STEPS, slot_count=2)), "cuda")
    for step, batch in enumerate(loader):
        check_rich(_host(batch), list(range(step * 4, step * 4 + 4)))
    assert cuda.machine.calls["copies"] - bool(refused) == STEPS  # one more clears CUDA's error


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_stats_tell_bytes_and_seconds_of_copies(bench: Bench, cuda: Cuda) -> None:
    """The bytes are those of the batches, and the seconds lie between events around the copies alone."""

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        for _ in range(1000):
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return batch

    source = [{"x": torch.zeros(100), "y": torch.zeros(3, dtype=torch.int64)} for _ in range(5)]
    loader = DeviceLoader(source, "cuda", slow)
    assert (loader.stats()["h2d_bytes"], loader.stats()["h2d_s"]) == (0, 0.0)
    list(loader)
    padded_bytes = 448 + 24  # fields begin at multiples of 64 bytes
    assert loader.stats()["h2d_bytes"] == 5 * padded_bytes
    # an entry of a queue is a simulated millisecond: a copy and its events, and not the kernels after them
    assert 0 < loader.stats()["h2d_s"] < 5 * 0.1
    assert DeviceLoader(source, "cpu").stats()["h2d_bytes"] == 0


@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_kept_labels_do_not_keep_the_images_beside_them(cuda: Cuda) -> None:
    """A trainer that keeps a small field of each batch keeps that field's memory, and not that of the whole slot."""
    image_bytes = 1 << 20
    batches = ({"img": torch.zeros(image_bytes, dtype=torch.uint8), "cls": torch.zeros(4)} for _ in range(30))
    kept = [batch["cls"] for batch in DeviceLoader(batches, "cuda")]
    assert len(kept) == 30
    assert torch.cuda.memory_reserved() < 8 * image_bytes


def _views(memory: torch.Tensor, *places: tuple[int, int, torch.dtype]) -> list[torch.Tensor]:
    return [memory[start : start + size_bytes].view(dtype) for start, size_bytes, dtype in places]


def test_blocks_are_of_neighbours_that_fit() -> None:
    """Tensors are joined if they are near and keep their alignment; the rest is copied by itself."""
    memory = torch.arange(40_000).to(torch.uint8)
    start = memory.data_ptr()
    near = _views(memory, (0, 64, torch.uint8), (256, 64, torch.int64), (1024, 8, torch.float32))
    addresses = range(start, start + len(memory))
    (block,) = blocks_of(near[::-1], addresses)
    assert block.memory == range(start, start + 1032)
    copied = block.copied(lambda at: memory[at.start - start : at.stop - start].clone())
    assert all(torch.equal(one, two) for one, two in zip(copied, near, strict=True))
    assert not blocks_of(near[:1], addresses)
    assert not blocks_of(near, range(start + 20_000, start + 40_000))
    far = _views(memory, (0, 64, torch.uint8), (256, 64, torch.uint8), (30_000, 64, torch.uint8))
    assert [len(one.memory) for one in blocks_of(far, addresses)] == [320]
    shifted = _views(memory, (4, 4, torch.uint8), (8, 8, torch.uint8), (16, 16, torch.int64))
    assert [len(one.tensors) for one in blocks_of(shifted, addresses)] == [2]  # 16 - 4 is no multiple of 8
    inner = _views(memory, (0, 128, torch.uint8), (64, 8, torch.int64))
    assert [len(one.memory) for one in blocks_of(inner, addresses)] == [128]
    same = _views(memory, (0, 64, torch.uint8), (0, 64, torch.int32))
    assert [len(one.memory) for one in blocks_of(same, addresses)] == [64]
