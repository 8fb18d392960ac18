"""Headers of images and sounds, damaged."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs import orient
from feedd.codecs.audio_headers import read_header
from feedd.codecs.boxes import Header
from feedd.codecs.sniff import header_of
from feedd.errors import BadSample
from feedd.recipe.transform_outcomes import PIXELS_MAX
from tests.budget import budget
from tests.fakes.sounds import sines, sound
from tests.unit.codecs.test_picture import turned

IMAGES = [turned(6, kind) for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "JPEG2000", "BMP")]
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
        assert 1 <= orient.orientation(file) <= 8
    with contextlib.suppress(BadSample):
        header = header_of(file)
        assert isinstance(header, Header)
        assert header.height > 0 < header.width
        assert header.height * header.width <= PIXELS_MAX


@settings(max_examples=budget(300))
@given(data=st.data())
def test_sound_headers_are_right_or_refused(data: st.DataObject) -> None:
    """Rate and channels are within their bounds, or a decoder is asked, or it is a BadSample."""
    file = damaged(data, SOUNDS)
    with contextlib.suppress(BadSample):
        found = read_header(file)
        assert found is None or (found.frames >= 0 and found.rate >= 1 and 1 <= found.channels <= 64)
