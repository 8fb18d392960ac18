"""Pictures and recipes that would cost seconds of a worker are refused."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from feedd.codecs import jpeg
from feedd.errors import BadRecipe, BadSample
from feedd.recipe.recipe import parse_field

START, END = b"\xff\xda", b"\xff\xd9"


def _progressive(edge: int) -> bytes:
    picture = np.zeros((edge, edge, 3), np.uint8)
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()


def _with_scans(data: bytes, count: int) -> bytes:
    """Repeat the last scan, which refines what is there."""
    last = data[data.rindex(START) : data.rindex(END)]
    return data[: data.rindex(END)] + last * count + END


def test_a_picture_of_very_many_scans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they could cost a second: large pictures in many bytes."""
    good = _progressive(64)
    bomb = _with_scans(good, 200)
    assert jpeg.header(memoryview(bomb))[:2] == (64, 64), "small pictures are not counted"
    monkeypatch.setattr(jpeg, "_SCANS_COUNTED_FROM", 1)
    jpeg.header(memoryview(good))
    with pytest.raises(BadSample, match="at most 100 scans, got 2"):
        jpeg.header(memoryview(bomb))


def test_from_where_scans_are_counted() -> None:
    """A bomb of 8192 x 8192 pixels and 276 KB is; a photograph of 12 megapixels and 100 KB need not be."""
    assert jpeg._SCANS_COUNTED_FROM <= 8192 * 8192 * 276_000
    assert jpeg._SCANS_COUNTED_FROM > 4000 * 3000 * 100_000


def test_a_recipe_has_at_most_64_transforms() -> None:
    """Each costs every sample."""
    flips = ", ".join(['"horizontal_flip"'] * 64)
    parse_field("jpg", f'{{"decode": "image", "size": [8, 8], "transforms": [{flips}]}}')
    with pytest.raises(BadRecipe, match="at most 64 transforms, got 65"):
        parse_field("jpg", f'{{"decode": "image", "size": [8, 8], "transforms": [{flips}, "horizontal_flip"]}}')
