"""Normalize: the reference formula, and what it applies to."""

from __future__ import annotations

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
    """Without fields= only uint8 images with as many channels as mean are touched; single samples count too."""
    labels, mask = torch.arange(4), torch.zeros(4, 8, 8, 1, dtype=torch.uint8)
    image = torch.full((8, 8, 3), 255, dtype=torch.uint8)
    out = Normalize((0.5,) * 3, (0.5,) * 3)({"cls": labels, "mask": mask, "jpg": image, "__key__": ["a"]})
    assert out["cls"] is labels
    assert out["mask"] is mask
    assert out["__key__"] == ["a"]
    assert out["jpg"].shape == (3, 8, 8)
    torch.testing.assert_close(out["jpg"], torch.ones(3, 8, 8))


def test_a_named_field_must_hold_images() -> None:
    """A field named explicitly that holds something else is an error saying what it holds."""
    with pytest.raises(BadOptionError, match="int64"):
        Normalize(MEAN, STD, fields=["cls"])({"cls": torch.arange(4)})
    with pytest.raises(BadOptionError):
        Normalize(MEAN, (1.0, 1.0))
    with pytest.raises(BadOptionError):
        Normalize(MEAN, (1.0, 0.0, 1.0))
