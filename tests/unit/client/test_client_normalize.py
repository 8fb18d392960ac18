"""Normalize: the reference formula, and what it applies to."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from feedd_client import BadOptionError, Normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _reference(pixels: torch.Tensor) -> torch.Tensor:
    values = pixels.double() / 255
    return ((values - torch.tensor(MEAN).double()) / torch.tensor(STD).double()).movedim(-1, -3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.slow
def test_values_are_the_textbooks(dtype: torch.dtype, tolerance: float, channels_last: bool) -> None:
    """Every pixel is (x / 255 - mean) / std within the dtype's rounding, in the memory order asked for."""
    pixels = torch.arange(2 * 5 * 7 * 3, dtype=torch.int64).remainder(256).to(torch.uint8).view(2, 5, 7, 3)
    out = Normalize(MEAN, STD, dtype, channels_last=channels_last)({"jpg": pixels})["jpg"]
    assert out.shape == (2, 3, 5, 7)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), _reference(pixels), rtol=tolerance, atol=tolerance)
    order = torch.channels_last if channels_last else torch.contiguous_format
    assert out.is_contiguous(memory_format=order)
    assert out.data_ptr() != pixels.data_ptr()


def test_other_fields_pass_through() -> None:
    """Without fields= only batches of uint8 images with as many channels as mean are touched."""
    labels, mask = torch.arange(4), torch.zeros(4, 8, 8, 1, dtype=torch.uint8)
    images, points = torch.full((4, 8, 8, 3), 255, dtype=torch.uint8), torch.zeros(4, 9, 3, dtype=torch.uint8)
    batch = {"cls": labels, "mask": mask, "jpg": images, "points": points, "__key__": ["a"]}
    out = Normalize((0.5,) * 3, (0.5,) * 3)(batch)
    assert out["cls"] is labels
    assert out["mask"] is mask
    assert out["points"] is points
    assert out["__key__"] == ["a"]
    torch.testing.assert_close(out["jpg"], torch.ones(4, 3, 8, 8))


def test_single_images_are_named() -> None:
    """Three dimensions may be a batch of rows: they are an image only where the user says so."""
    image = torch.full((8, 8, 3), 255, dtype=torch.uint8)
    (out,) = Normalize((0.5,) * 3, (0.5,) * 3, fields=["jpg"])({"jpg": image}).values()
    torch.testing.assert_close(out, torch.ones(3, 8, 8))
    with pytest.raises(BadOptionError, match=r"jpg: torch.uint8 \[8, 8, 3\]"):
        Normalize((0.5,) * 3, (0.5,) * 3)({"jpg": image})


def test_to_fit_nothing_is_an_error() -> None:
    """A mean of another number of channels, or a batch without images, is said, with what the batch has."""
    images = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    with pytest.raises(BadOptionError, match=r"jpg: torch.uint8 \[2, 4, 4, 3\], cls: torch.int64 \[2\]"):
        Normalize((0.5,), (0.5,))({"jpg": images, "cls": torch.arange(2)})
    with pytest.raises(BadOptionError, match="no such field"):
        Normalize(MEAN, STD, fields=["png"])({"jpg": images})
    with pytest.raises(BadOptionError, match="Tensor"):
        Normalize(MEAN, STD)(images)  # type: ignore[arg-type]  # that is the mistake


def test_the_batch_keeps_its_type() -> None:
    """A mapping of another type than dict comes out as that type."""
    out = Normalize(MEAN, STD)(OrderedDict(jpg=torch.zeros(2, 4, 4, 3, dtype=torch.uint8)))
    assert type(out) is OrderedDict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_kernel_gives_the_bits_of_two(dtype: torch.dtype) -> None:
    """Whichever way is taken for a device and memory order, the numbers are the same to the last bit."""
    pixels = torch.arange(3 * 16 * 16 * 3, dtype=torch.int64).remainder(256).to(torch.uint8).view(3, 16, 16, 3)
    one = Normalize(MEAN, STD, dtype, channels_last=True)({"jpg": pixels})["jpg"]
    two = Normalize(MEAN, STD, dtype)({"jpg": pixels})["jpg"]
    assert torch.equal(one, two)


def test_a_named_field_must_hold_images() -> None:
    """A field named explicitly that holds something else is an error saying what it holds."""
    with pytest.raises(BadOptionError, match="int64"):
        Normalize(MEAN, STD, fields=["cls"])({"cls": torch.arange(4)})
    with pytest.raises(BadOptionError):
        Normalize(MEAN, (1.0, 1.0))
    with pytest.raises(BadOptionError):
        Normalize(MEAN, (1.0, 0.0, 1.0))
