"""The codec ``audio``: libsndfile decodes WAV, FLAC, MP3 and Ogg, libsoxr resamples. Only the wanted part is decoded.

The length of a WAV or FLAC is read from the header here, and not by libsndfile: see ``docs/dev/decisions/0038``.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import soundfile
import soxr

from feedd.codecs.transforms.crop import uniform
from feedd.errors import BadSample
from feedd.recipe.audio_params import BYTES_MAX, CHANNELS_MAX, RATE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from feedd.recipe.audio_params import AudioParams
    from feedd.values import TensorSpec

_MISSING_MAX: Final = 4 * 1152
"""Frames that MP3 and Ogg may lack, because the encoder's delay and padding are not always stated."""
_FORMATS: Final = frozenset({"WAV", "WAVEX", "RF64", "W64", "FLAC", "MP3", "OGG", "AIFF", "AU", "CAF"})
_FIXED_WIDTH: Final = frozenset({1, 3, 6, 7, 0xFFFE})
"""WAV codings with frames of a fixed size: PCM, float, A-law, mu-law, and the tag for a coding stated elsewhere."""
_STREAM_SIZES: Final = frozenset({0, 0xFFFFFFFF})
"""Data sizes that programs write if they do not know how long the stream will be."""
_CHUNKS_MAX: Final = 4096


class Sound(NamedTuple):
    """The header of a sound file.

    Attributes:
        frames: samples of each channel.
        rate: samples per second.
        channels: number of channels.
        exact: whether decoding must give exactly ``frames``; MP3 and Ogg may lack a few at the ends.
    """

    frames: int
    rate: int
    channels: int
    exact: bool = True


class AudioCodec:
    """Codec of ``audio``."""

    def __init__(self, params: AudioParams) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """DENSE or RAGGED, [channels, frames] or [frames]."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the decoded shape; WAV and FLAC are not decoded for it.

        Raises:
            BadSample: not audio, too long, or the channels differ from the recipe.
        """
        sound = self._sound(data)
        return self._params.shape(sound.channels, self._out_frames(sound))

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Decode, mix, resample and cut into ``out``.

        Raises:
            BadSample: corrupt, or the shape differs from ``out``.
        """
        sound = self._sound(data)
        frames = self._out_frames(sound)
        if out.shape != self._params.shape(sound.channels, frames):
            raise BadSample(f"expected sound of shape {list(out.shape)}, got {sound.channels} channels of {frames}")
        start, count = self._span(sound, frames, seed)
        values = _read(data, sound, start, count)
        if self._params.mono and values.shape[1] > 1:
            values = values.mean(axis=1, keepdims=True, dtype=np.float32)
        rate = self._params.rate or sound.rate
        if rate != sound.rate and len(values):
            values = soxr.resample(values, sound.rate, rate)
        if not np.isfinite(values).all():  # after resampling, which may overflow large values
            raise BadSample("expected finite sound samples, got infinite or NaN ones")
        there = min(len(values), frames)
        rows = out if out.ndim == 2 else out[None]
        rows[:, :there] = _as(values[:there].T, out.dtype)
        rows[:, there:] = 0

    def _sound(self, data: memoryview) -> Sound:
        sound = read_header(data) or _library_header(data)
        if self._params.channels not in {None, sound.channels}:
            raise BadSample(f"expected {self._params.channels} channels, got {sound.channels}")
        return sound

    def _out_frames(self, sound: Sound) -> int:
        """Return the number of decoded frames."""
        frames = self._params.frames
        if frames is None:
            rate = self._params.rate or sound.rate
            frames = (sound.frames * rate + sound.rate // 2) // sound.rate
            if max(frames, sound.frames) * sound.channels * 4 > BYTES_MAX:
                raise BadSample(f"expected at most {BYTES_MAX} bytes of sound, got {frames} frames")
        return frames

    def _span(self, sound: Sound, frames: int, seed: int) -> tuple[int, int]:
        """Return the first wanted frame and the number of frames, at the file's own rate."""
        if self._params.rate is None or self._params.seconds is None:
            return 0, sound.frames
        count = -(-frames * sound.rate // self._params.rate)
        if count * sound.channels * 4 > BYTES_MAX:
            raise BadSample(f"expected at most {BYTES_MAX} bytes of sound, got {count} frames")
        free = sound.frames - count
        if free <= 0:
            return 0, sound.frames
        return (int(uniform(seed, 0) * (free + 1)) if self._params.random else 0), count


def _checked(sound: Sound) -> Sound:
    """Return ``sound`` after a check.

    Raises:
        BadSample: the rate or the number of channels is out of range.
    """
    if not (1 <= sound.rate <= RATE_MAX and 1 <= sound.channels <= CHANNELS_MAX and sound.frames >= 0):
        raise BadSample(
            f"expected 1 to {CHANNELS_MAX} channels at 1 to {RATE_MAX} Hz, got {sound.channels} at {sound.rate}"
        )
    return sound


def read_header(data: memoryview) -> Sound | None:
    """Return the header of a WAV or FLAC, or None if only a decoder can read the format.

    Raises:
        BadSample: the header is cut short or invalid.
    """
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return _wav(data)
    if head[:4] == b"fLaC":
        return _flac(data)
    return None


def _wav(data: memoryview) -> Sound | None:
    form: tuple[int, int, int, int] | None = None
    for kind, at, size in _chunks(data):
        if kind == b"fmt " and size >= 16 and at + 16 <= len(data):
            tag, channels, rate, _, block = struct.unpack_from("<HHIIH", data, at)
            form = tag, channels, rate, block
        elif kind == b"data":
            if form is None or form[0] not in _FIXED_WIDTH or not form[3]:
                return None
            there = len(data) - at
            if size not in _STREAM_SIZES and size > there:
                raise BadSample(f"expected {size} bytes of sound, got {there}")
            _, channels, rate, block = form
            return _checked(Sound((there if size in _STREAM_SIZES else size) // block, rate, channels))
    raise BadSample(f"expected a WAV with sound data, got {len(data)} bytes without it")


def _chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    at = 12
    for _ in range(_CHUNKS_MAX):
        if at + 8 > len(data):
            return
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        yield bytes(data[at : at + 4]), at + 8, size
        at += 8 + size + size % 2


def _flac(data: memoryview) -> Sound | None:
    if len(data) < 26 or data[4] & 0x7F:
        raise BadSample(f"expected a FLAC with stream information, got {len(data)} bytes")
    packed = int.from_bytes(data[18:26], "big")  # rate 20 bits, channels 3, bits 5, frames 36
    frames = packed & 0xFFFFFFFFF
    if not frames:
        return None
    return _checked(Sound(frames, packed >> 44, (packed >> 41 & 7) + 1))


def _library_header(data: memoryview) -> Sound:
    """Return the header as libsndfile reads it: libsndfile searches the end of an Ogg and every frame of an MP3."""
    with _opened(data) as file:
        if file.format not in _FORMATS:
            raise BadSample(f"expected WAV, FLAC, MP3 or Ogg, got {file.format}")
        return _checked(Sound(file.frames, file.samplerate, file.channels, file.format not in {"MP3", "OGG"}))


class _Bytes(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        # If lengths are wrong, libsndfile seeks before the beginning. An exception would be printed on stderr.
        return super().seek(max(0, offset) if whence == 0 else offset, whence)


def _opened(data: memoryview) -> Any:  # noqa: ANN401 - soundfile has no types
    try:
        return soundfile.SoundFile(_Bytes(data))
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise BadSample(f"expected WAV, FLAC, MP3 or Ogg, got {len(data)} bytes: {_said(error)}") from error


def _read(data: memoryview, sound: Sound, start: int, count: int) -> NDArray[np.float32]:
    """Return float32 [frames, channels]; lossy codings may give slightly fewer frames than ``count``."""
    with _opened(data) as file:
        if (file.samplerate, file.channels) != (sound.rate, sound.channels):
            raise BadSample(f"expected {sound.channels} channels, got {file.channels} at {file.samplerate} Hz")
        try:
            if start:
                file.seek(start)
            values: NDArray[np.float32] = file.read(count, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
            raise BadSample(f"expected intact sound, got {len(data)} bytes: {_said(error)}") from error
    missing = count - len(values)
    if missing > (0 if sound.exact else _MISSING_MAX):
        raise BadSample(f"expected {count} frames of intact sound, got {len(values)}")
    return values


def _said(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def _as(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype == np.float32:
        return values
    with np.errstate(over="ignore"):  # infinity is clipped like every other value that is too loud
        return np.clip(np.rint(values * 32768), -32768, 32767).astype(np.int16)
