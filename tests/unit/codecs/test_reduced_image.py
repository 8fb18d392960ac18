"""Images that are reduced in size before training."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from feedd.codecs.reduced_image import reduced
from feedd.errors import BadSample


def _picture(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Return a picture that is light at the top left, and red or clear at the right."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [255 - rows * 255 // height, 255 - columns * 255 // width, columns * 255 // width, rows * 255 // height]
    count = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    return Image.fromarray(np.dstack(channels[:count]).astype(np.uint8).squeeze(), mode)


def _encoded(image: Image.Image, kind: str, **options: object) -> memoryview:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return memoryview(out.getvalue())


@pytest.mark.parametrize(
    ("kind", "extension", "mode"),
    [
        ("JPEG", "jpg", "RGB"),
        ("JPEG", "jpeg", "L"),
        ("PNG", "png", "RGB"),
        ("PNG", "png", "RGBA"),
        ("PNG", "png", "L"),
        ("WEBP", "webp", "RGB"),
        ("PNG", "jpg", "RGBA"),
    ],
)
def test_the_shorter_side_has_the_wanted_length(kind: str, extension: str, mode: str) -> None:
    """The picture stays what it was: its colours, its channels, its proportions; the name decides the format."""
    image = _picture(120, 200, mode)
    data = reduced(_encoded(image, kind), extension, 48, 95)
    assert data is not None
    found = Image.open(io.BytesIO(data))
    assert found.size == (80, 48)
    assert found.format == {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}[extension]
    kept = mode if extension == "png" or mode == "L" else "RGB"
    assert found.mode == kept
    bands = [band.resize((80, 48), Image.Resampling.BOX) for band in image.convert(kept).split()]
    wanted = np.asarray(Image.merge(kept, bands), np.int64)
    assert np.abs(np.asarray(found, np.int64) - wanted).max() < 12


def test_orientation_is_applied() -> None:
    """A picture that a viewer turns is stored turned, because the result has no EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = reduced(_encoded(_picture(120, 200), "JPEG", exif=exif, quality=95), "jpg", 48, 95)
    assert data is not None
    found = Image.open(io.BytesIO(data))
    assert found.size == (48, 80)
    assert not found.getexif()
    turned = _picture(120, 200).rotate(-90, expand=True).resize((48, 80), Image.Resampling.BOX)
    assert np.abs(np.asarray(found, np.int64) - np.asarray(turned, np.int64)).max() < 12


def test_small_pictures_stay_as_they_are() -> None:
    """A picture whose shorter side is not longer than wanted is not encoded again."""
    assert reduced(_encoded(_picture(48, 200), "JPEG"), "jpg", 48, 90) is None


def test_damaged_pictures_are_bad_samples() -> None:
    """Half a picture is an error, not a grey area."""
    data = _encoded(_picture(120, 200), "JPEG")
    with pytest.raises(BadSample):
        reduced(data[: len(data) // 2], "jpg", 48, 90)
    with pytest.raises(BadSample):
        reduced(memoryview(b"no picture"), "png", 48, 90)
