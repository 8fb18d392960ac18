"""Audio held against the sines it was made of."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd.codecs.audio import Sound, read_header
from feedd.codecs.codec_registry import make
from feedd.codecs.transforms.crop import uniform
from feedd.errors import BadRecipe, BadSample, Unsupported
from feedd.recipe import extras
from feedd.recipe.recipe import default_fields, needs_measure, parse_field, spec_of
from feedd.values import FieldKind
from tests.budget import PATIENT_S
from tests.fakes.sounds import sines, sound

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decoded(recipe: str, data: bytes, seed: int = 0) -> NDArray[Any]:
    """Decode one sample into a row of the shape that is measured."""
    field = parse_field("x", recipe)
    codec, spec = make(field), spec_of(field)
    shape = codec.measure(memoryview(data))
    assert (spec.kind is FieldKind.DENSE) == (not needs_measure(field))
    if spec.kind is FieldKind.DENSE:
        assert shape == spec.shape
    assert len(shape) == spec.ndim
    out = np.full(shape, 77, spec.dtype)
    codec.decode(memoryview(data).toreadonly(), out, seed)
    return out


STEREO = sines(5000, 16000, 440, 660)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "PCM_U8", "ULAW"])
def test_waves_of_every_coding_are_what_was_written(subtype: str) -> None:
    """[channels, frames] within the coding's own precision."""
    got = decoded("audio", sound(STEREO, 16000, subtype=subtype))
    assert got.shape == (2, 5000)
    assert got.dtype == np.float32
    precision = {"PCM_16": 1e-4, "PCM_U8": 1e-2, "ULAW": 2e-2}.get(subtype, 1e-6)
    np.testing.assert_allclose(got, STEREO.T, atol=precision)


@pytest.mark.parametrize(("kind", "subtype", "atol"), [("FLAC", None, 1e-4), ("OGG", None, 0.05), ("MP3", None, 0.05)])
def test_other_containers(kind: str, subtype: str | None, atol: float) -> None:
    """FLAC exactly; Ogg and MP3 as the sine they were, all frames of it."""
    got = decoded("audio", sound(STEREO, 16000, kind, subtype))
    assert got.shape[0] == 2
    assert abs(got.shape[1] - 5000) <= (0 if kind != "MP3" else 2 * 1152)
    count = min(5000, got.shape[1]) - 1200
    np.testing.assert_allclose(got[:, 1200:count], STEREO.T[:, 1200:count], atol=atol)


def test_int16_keeps_every_bit() -> None:
    """A 16-bit file's own values, extremes included."""
    values = np.array([[-32768, 32767], [0, -1], [12345, 1]], np.int16)
    got = decoded('{"decode": "audio", "dtype": "int16"}', sound(values, 8000))
    np.testing.assert_array_equal(got, values.T)


def test_mono_is_the_mean() -> None:
    """Two channels become their mean, one stays as it is; neither has a dimension for them."""
    recipe = '{"decode": "audio", "mono": true}'
    np.testing.assert_allclose(decoded(recipe, sound(STEREO, 16000)), STEREO.mean(axis=1), atol=1e-4)
    np.testing.assert_allclose(decoded(recipe, sound(STEREO[:, :1], 16000)), STEREO[:, 0], atol=1e-4)


@pytest.mark.parametrize(("old", "new"), [(44100, 16000), (8000, 16000), (22050, 48000), (16000, 16000)])
def test_resampling_gives_the_same_sine(old: int, new: int) -> None:
    """At another rate the sine goes through its own values, and lasts as long."""
    got = decoded(f'{{"decode": "audio", "rate": {new}}}', sound(sines(old, old, 440, 300), old))
    assert got.shape == (2, new)
    expected = sines(new, new, 440, 300).T
    np.testing.assert_allclose(got[:, 500:-500], expected[:, 500:-500], atol=2e-3)


def test_seconds_cut_and_fill() -> None:
    """So many frames of each: the beginning of what is longer, silence behind what is shorter."""
    recipe = '{"decode": "audio", "rate": 16000, "mono": true, "seconds": 0.25}'
    assert spec_of(parse_field("x", recipe)).shape == (4000,)
    np.testing.assert_allclose(decoded(recipe, sound(STEREO, 16000)), STEREO[:4000].mean(axis=1), atol=1e-4)
    short = decoded(recipe, sound(STEREO[:1000], 16000))
    np.testing.assert_allclose(short[:1000], STEREO[:1000].mean(axis=1), atol=1e-4)
    assert not short[1000:].any()
    fixed = '{"decode": "audio", "rate": 16000, "channels": 2, "seconds": 0.25}'
    assert spec_of(parse_field("x", fixed)).shape == (2, 4000)
    np.testing.assert_allclose(decoded(fixed, sound(STEREO, 16000)), STEREO[:4000].T, atol=1e-4)
    with pytest.raises(BadSample, match="expected 2 channels, got 1"):
        decoded(fixed, sound(STEREO[:, :1], 16000))
    loose = '{"decode": "audio", "rate": 16000, "seconds": 0.25}'
    assert decoded(loose, sound(STEREO, 16000)).shape == (2, 4000)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_random_parts_start_where_the_seed_says(kind: str) -> None:
    """The part begins at draw 0 of the seed over all places there are; other seeds, other parts."""
    recipe = '{"decode": "audio", "rate": 16000, "mono": true, "seconds": 0.1, "random": true}'
    data = sound(STEREO, 16000, kind)
    starts = set()
    for seed in range(12):
        start = int(uniform(seed, 0) * (5000 - 1600 + 1))
        starts.add(start)
        expected = STEREO[start : start + 1600].mean(axis=1)
        np.testing.assert_allclose(decoded(recipe, data, seed), expected, atol=0.06 if kind == "OGG" else 1e-4)
    assert len(starts) == 12
    resampled = decoded(recipe.replace("16000", "8000"), data, 3)
    start = int(uniform(3, 0) * (5000 - 1600 + 1))
    expected = sines(800, 8000, 440, 660, start=start / 16000).mean(axis=1)
    np.testing.assert_allclose(resampled[100:-100], expected[100:-100], atol=0.06 if kind == "OGG" else 3e-3)


def test_headers_tell_the_length_without_a_decoder() -> None:
    """A WAV's and a FLAC's first bytes have frames, rate and channels; a piped WAV lasts to its end."""
    data = sound(STEREO, 16000)
    assert read_header(memoryview(data)) == Sound(5000, 16000, 2)
    assert read_header(memoryview(sound(STEREO, 16000, "FLAC"))[:42]) == Sound(5000, 16000, 2)
    at = data.index(b"data") + 4
    for unknown in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
        piped = data[:at] + unknown + data[at + 4 :]
        assert read_header(memoryview(piped)) == Sound(5000, 16000, 2)
    with pytest.raises(BadSample, match="bytes of sound"):
        read_header(memoryview(data)[:-10])
    assert read_header(memoryview(sound(STEREO, 16000, "OGG"))) is None


def test_an_empty_sound_is_empty() -> None:
    """No frames are no frames, and silence where seconds are wanted."""
    empty = sound(STEREO[:0], 16000)
    assert decoded("audio", empty).shape == (2, 0)
    assert not decoded('{"decode": "audio", "rate": 8000, "mono": true, "seconds": 0.1}', empty).any()


def test_damage_and_bombs_are_bad_samples() -> None:
    """Cut files, noise, headers that claim hours, and floats that are no numbers."""
    flac = bytearray(sound(STEREO, 16000, "FLAC"))
    long = bytearray(flac)
    long[21:26] = bytes([long[21] | 0x0F]) + b"\xff\xff\xff\xff"
    nan = sound(np.full((10, 1), np.nan, np.float32), 8000, subtype="FLOAT")
    wave = sound(STEREO, 16000)
    fast = wave[:24] + struct.pack("<I", 1 << 31) + wave[28:]
    for data in (
        b"",
        b"RIFF",
        wave[:-3],
        wave[:30],
        bytes(flac[: len(flac) // 2]),
        bytes(long),
        nan,
        fast,
        b"\0" * 5000,
    ):
        with pytest.raises(BadSample, match=r"expected .* got"):
            decoded("audio", data)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0},
        {"seconds": 1},
        {"random": True},
        {"rate": 8000, "seconds": 0},
        {"rate": 8000, "seconds": 1e9},
        {"mono": True, "channels": 1},
        {"channels": 0},
        {"dtype": "float64"},
        {"hertz": 3},
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    """A BadRecipe that lists what audio takes."""
    with pytest.raises(BadRecipe, match="audio takes rate, mono, channels"):
        parse_field("x", json.dumps({"decode": "audio", **options}))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """At open, before any worker meets a sample; and what nobody named stays bytes."""
    assert default_fields(("wav",))[0].codec == "audio"
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="soundfile and soxr") as caught:
        parse_field("x", "audio")
    assert caught.value.hint == "install feedd[audio]"
    assert default_fields(("wav",))[0].codec == "bytes"


@pytest.mark.slow
def test_the_daemon_loads_no_audio_library() -> None:
    """Naming the codec imports neither library in the process that does."""
    code = (
        "import sys\nfrom feedd.recipe.recipe import parse_field, spec_of\nspec_of(parse_field('x', 'audio'))\n"
        "print([name for name in ('soundfile', 'soxr', 'cv2') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENT_S)
    assert output.stdout.strip() == "[]"
