"""Decoders of encoded fields: they read shared memory itself, on the copy stream, before anything is copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import BadOptionError, DeviceLoader, Ragged

if TYPE_CHECKING:
    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench

STEPS = 8


def _check(batches: list[dict[str, Any]]) -> None:
    for step, batch in enumerate(batches):
        assert batch["raw"].tolist() == [number % 256 for number in range(step * 4, step * 4 + 4)]
        assert batch["cls"].tolist() == list(range(step * 4, step * 4 + 4))


def _first_bytes(encoded: Ragged, device: torch.device) -> torch.Tensor:
    """Stand in for a decoder: each sample becomes its first byte, read as late as a device may read it."""
    made = torch.empty(len(encoded), dtype=torch.uint8, device=device)
    for row in range(len(encoded)):
        made[row].copy_(encoded[row][0], non_blocking=True)
    return made


def _file_at(address: int) -> str:
    """Return the name of the file that is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(None, 5)[-1]
    raise AssertionError(address)


@pytest.mark.parametrize("cuda", ["lazy", "late-copies", "random-0"], indirect=True)
def test_a_decoder_gets_the_slot_itself(bench: Bench, cuda: Cuda) -> None:
    """Bytes that a decoder reads late are still there: the slot goes back after the copy stream has passed it."""
    dataset = bench.dataset(bench.server(steps=STEPS, slot_count=2))
    seen: list[bool] = []

    def decode(encoded: Ragged, device: torch.device) -> torch.Tensor:
        assert encoded.values.is_cpu
        seen.append(cuda.host.is_pinned(encoded.values.data_ptr()))
        return _first_bytes(encoded, device)

    _check(list(DeviceLoader(dataset, "cuda", decode={"raw": decode})))
    assert seen == [True] * STEPS


def test_on_the_cpu_a_decoder_gets_the_slot_too(bench: Bench) -> None:
    """The decoder's memory lies in the arena, and what the loader yields does not."""
    dataset = bench.dataset(bench.server(steps=STEPS, slot_count=2))
    mapped: list[str] = []

    def decode(encoded: Ragged, device: torch.device) -> torch.Tensor:
        mapped.append(_file_at(encoded.values.data_ptr()))
        return _first_bytes(encoded, device)

    batches = list(DeviceLoader(dataset, "cpu", decode={"raw": decode}))
    _check(batches)
    assert all("memfd:" in name for name in mapped)
    assert "memfd:" not in _file_at(batches[0]["cls"].data_ptr())


def test_a_decoder_without_its_field_is_said() -> None:
    """A name that the batches do not have is an error that lists what they have; so is what cannot be walked."""
    with pytest.raises(BadOptionError, match=r"'jpg'.*\['x'\].*decode"):
        list(DeviceLoader([{"x": torch.zeros(1)}], "cpu", decode={"jpg": _first_bytes}))
    with pytest.raises(BadOptionError, match="object"):
        list(DeviceLoader([{"x": torch.zeros(1)}], "cpu", decode={"x": lambda _value, _device: object()}))


def test_decoded_fields_go_through_the_transforms(bench: Bench) -> None:
    """Transforms see decoded fields beside the others."""
    dataset = bench.dataset(bench.server(steps=2))
    loader = DeviceLoader(dataset, "cpu", lambda batch: {"two": batch["raw"].int() * 2}, decode={"raw": _first_bytes})
    assert [batch["two"].tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14]]
