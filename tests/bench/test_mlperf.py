"""MLPerf Storage's utilisation: the first step is left out, and an epoch has each sample once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.bench.arms.accelerator import train, utilisation
from tests.bench.mlperf import RESNET50, UNET3D

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTINGS: dict[str, Any] = {"step_s": 0.0, "batch_size": 4, "record_bytes": 3, "sample_count": 6}


def _batches(*numbers: list[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for batch in numbers:
        yield torch.zeros((len(batch), 3), dtype=torch.uint8), torch.tensor(batch)


def test_the_first_step_does_not_count() -> None:
    """DLIO's utilisation begins where the first step ends, and then all time counts."""
    assert utilisation([5.0, 2.0, 2.0], first_step_end_s=10.0, ended_s=18.0) == 0.5


def test_an_epoch_gives_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """A whole epoch in any order prints samples, batches and rates as the last line."""
    train(_batches([3, 0, 5, 1], [4, 2]), tuple, _SETTINGS)
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["samples"], row["batches"]) == (6, 2)
    assert row["bytes_per_s"] == pytest.approx(3 * row["samples_per_s"])


@pytest.mark.parametrize("batches", [([0, 1, 2, 3], [4]), ([0, 1, 2, 3], [4, 4])], ids=["missing", "repeated"])
def test_an_epoch_without_each_sample_once_fails(batches: tuple[list[int], ...]) -> None:
    """An arm that loses or repeats a sample has no figures."""
    with pytest.raises(AssertionError, match=r"expected .* samples and label sum"):
        train(_batches(*batches), tuple, _SETTINGS)


def test_accelerators_ask_for_the_known_rates() -> None:
    """An H100 takes 205 MB/s of ResNet-50's records, and 3.2 GB/s of UNet3D's volumes."""
    assert RESNET50.bytes_per_s("h100") == pytest.approx(205e6, rel=0.01)
    assert UNET3D.bytes_per_s("h100") == pytest.approx(3.18e9, rel=0.01)
