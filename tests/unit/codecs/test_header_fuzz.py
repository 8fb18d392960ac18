"""Headers of images and sounds, damaged."""

from __future__ import annotations

import contextlib
import random

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs import tiff
from feedd.codecs.audio import read_header
from feedd.codecs.image_header import Header, header_of, orientation_of
from feedd.errors import BadSample
from feedd.recipe.transform_outcomes import PIXELS_MAX
from tests.budget import budget
from tests.fakes.sounds import sines, sound
from tests.fuzz.mutate import mutated
from tests.unit.codecs.test_picture import decoded, turned

KINDS = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "JPEG2000", "BMP")
IMAGES = [turned(6, kind) for kind in KINDS]
SOUNDS = [sound(sines(200, 8000, 300), 8000, kind) for kind in ("WAV", "FLAC")]


def damaged(data: st.DataObject, files: list[bytes]) -> memoryview:
    """Draw a file with a few bytes changed near its beginning or end, or cut."""
    sample = bytearray(data.draw(st.sampled_from(files)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(400, len(sample))))
        at = len(sample) - at if data.draw(st.booleans()) else at
        sample[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    return memoryview(bytes(sample[: data.draw(st.integers(0, len(sample)))] if data.draw(st.booleans()) else sample))


@settings(max_examples=budget(600))
@given(data=st.data())
def test_image_headers_are_right_or_refused(data: st.DataObject) -> None:
    """Size, channels and orientation are within their bounds, or it is a BadSample; nothing else ever happens."""
    file = damaged(data, IMAGES)
    with contextlib.suppress(BadSample):
        assert 1 <= orientation_of(file) <= 8
    with contextlib.suppress(BadSample):
        header = header_of(file)
        assert isinstance(header, Header)
        assert header.height > 0 < header.width
        assert header.height * header.width <= PIXELS_MAX


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_size_in_a_header_is_the_size_that_is_decoded(kind: str) -> None:
    """Whatever happens to a file: OpenCV makes an image of the size that was found and bounded, or none."""
    source, whole = random.Random(kind), turned(6, kind)
    for _ in range(budget(200)):
        file = memoryview(mutated([whole], source))
        try:
            header = header_of(file)
        except BadSample:
            continue
        pixels = tiff.without_orientation(file) if kind == "TIFF" else file
        with contextlib.suppress(cv2.error):
            image = cv2.imdecode(np.frombuffer(pixels, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            assert image is None or image.shape[:2] == header[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_anywhere_have_a_header_or_are_bad_samples(kind: str) -> None:
    """Reading a header never goes beyond the bytes that are there."""
    whole = turned(6, kind)
    for length in range(min(len(whole), 600)):
        for read in (header_of, orientation_of):
            with contextlib.suppress(BadSample):
                read(memoryview(whole)[:length])


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_images_are_rows_or_bad_samples(kind: str) -> None:
    """Decoding damaged files raises nothing but BadSample, and rows have the size that was measured."""
    source, whole = random.Random(kind), turned(6, kind)
    for recipe in ("image", "image:24x24:random", '{"decode": "image", "orient": true, "dtype": "uint16"}'):
        assert decoded(recipe, whole).any()
        for _ in range(budget(100)):
            with contextlib.suppress(BadSample):
                decoded(recipe, mutated([whole], source))


@settings(max_examples=budget(300))
@given(data=st.data())
def test_sound_headers_are_right_or_refused(data: st.DataObject) -> None:
    """Rate and channels are within their bounds, or a decoder is asked, or it is a BadSample."""
    file = damaged(data, SOUNDS)
    with contextlib.suppress(BadSample):
        found = read_header(file)
        assert found is None or (found.frames >= 0 and found.rate >= 1 and 1 <= found.channels <= 64)
