"""Static batches: addresses that never change, for CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import BadOptionError, DeviceLoader, Normalize, Ragged
from tests.unit.client.test_device_copies import Bundle

if TYPE_CHECKING:
    from feedd_client import FeedDataset
    from tests.fakes.feed_client import Bench


def _dataset(bench: Bench) -> FeedDataset:
    return bench.dataset(bench.server(steps=5))


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("cuda", ["lazy", "late-copies", "random-0"], indirect=True)
def test_static_batches_lie_where_the_first_one_lay() -> None:
    """Addresses and strides are those of the first batch in every epoch, and each batch has its own values."""
    pixels = [torch.full((2, 4, 4, 3), step, dtype=torch.uint8) for step in range(6)]
    source = [{"img": one, "cls": torch.full((2,), step)} for step, one in enumerate(pixels)]
    normalize = Normalize((0.0,) * 3, (1 / 255,) * 3)
    loader = DeviceLoader(source, "cuda", normalize, static=True, channels_last=True)
    places = set()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(2):
        for step, batch in enumerate(loader):
            places.add((batch["img"].data_ptr(), batch["img"].stride(), batch["cls"].data_ptr()))
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            wrong += (batch["img"] != step).sum() + (batch["cls"] != step).sum()
    assert int(wrong.item()) == 0
    ((_, stride, _),) = places
    assert stride == (48, 1, 12, 3)


def test_on_the_cpu_static_batches_have_fixed_addresses_too(bench: Bench) -> None:
    """A graph's code can be tried on a machine without a GPU."""
    loader = DeviceLoader(({"img": batch["img"], "cls": batch["cls"]} for batch in _dataset(bench)), static=True)
    seen, places = [], set()
    for batch in loader:
        seen += batch["cls"].tolist()
        places.add((batch["img"].data_ptr(), batch["cls"].data_ptr()))
    assert seen == list(range(20))
    assert len(places) == 1


def test_a_shorter_batch_fills_the_first_rows() -> None:
    """The last batch of an epoch may have fewer rows: it is the beginning of the same memory."""
    batches = [{"x": torch.full((rows, 3), rows)} for rows in (4, 4, 2)]
    kept = [(one["x"].data_ptr(), one["x"].tolist()) for one in DeviceLoader(batches, "cpu", static=True)]
    assert len({place for place, _ in kept}) == 1
    assert kept[-1][1] == [[2] * 3] * 2


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"x": torch.zeros(5, 3)}, r"\[5, 3\]"),
        ({"x": torch.zeros(4, 2)}, r"\[4, 2\]"),
        ({"x": torch.zeros(4, 3, dtype=torch.int64)}, "int64"),
        ({"x": torch.zeros(4, 3), "y": torch.zeros(1)}, "1 tensors"),
        ({"x": Ragged(torch.zeros(13), torch.tensor([0, 13]))}, "tensors"),
        ({"x": Bundle(torch.zeros(4, 3))}, "Bundle"),
    ],
)
def test_what_does_not_fit_is_said(other: dict[str, Any], match: str) -> None:
    """A batch of another shape, type or number of tensors is an error, and no memory of another address."""
    batches = iter(DeviceLoader([{"x": torch.zeros(4, 3)}, other], "cpu", static=True))
    next(batches)
    with pytest.raises(BadOptionError, match=match):
        next(batches)
