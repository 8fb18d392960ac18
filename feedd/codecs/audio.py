"""``audio``: WAV, FLAC, MP3 and Ogg by libsndfile, resampled by libsoxr. Only what is wanted is decoded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import soundfile
import soxr

from feedd.codecs.audio_headers import Sound, checked, read_header
from feedd.codecs.transforms.crop import uniform
from feedd.errors import BadSample
from feedd.recipe.audio_params import BYTES_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.recipe.audio_params import AudioParams
    from feedd.values import TensorSpec

_MISSING_MAX: Final = 4 * 1152
"""Frames that MP3 and Ogg may lack: their encoders' delay and padding are not always told."""
_FORMATS: Final = frozenset({"WAV", "WAVEX", "RF64", "W64", "FLAC", "MP3", "OGG", "AIFF", "AU", "CAF"})


class AudioCodec:
    """``audio``, by its parameters."""

    def __init__(self, params: AudioParams) -> None:
        self._params = params

    def spec(self, name: str) -> TensorSpec:
        """DENSE or RAGGED, [channels, frames] or [frames]."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the decoded shape; WAV and FLAC are not decoded for it.

        Raises:
            BadSample: not audio, too much of it, or not with the channels of the recipe.
        """
        sound = self._sound(data)
        return self._params.shape(sound.channels, self._out_frames(sound))

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Decode, mix, resample and cut into ``out``.

        Raises:
            BadSample: corrupt, or not of that shape.
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
        if not np.isfinite(values).all():  # after resampling: it makes such of what is nearly too large
            raise BadSample("expected finite samples, got others")
        there = min(len(values), frames)
        rows = out if out.ndim == 2 else out[None]
        rows[:, :there] = _as(values[:there].T, out.dtype)
        rows[:, there:] = 0

    def _sound(self, data: memoryview) -> Sound:
        sound = read_header(data) or _asked(data)
        if self._params.channels not in {None, sound.channels}:
            raise BadSample(f"expected {self._params.channels} channels, got {sound.channels}")
        return sound

    def _out_frames(self, sound: Sound) -> int:
        """Return how many frames come out."""
        frames = self._params.frames
        if frames is None:
            rate = self._params.rate or sound.rate
            frames = (sound.frames * rate + sound.rate // 2) // sound.rate
            if max(frames, sound.frames) * sound.channels * 4 > BYTES_MAX:
                raise BadSample(f"expected at most {BYTES_MAX} bytes of sound, got {frames} frames")
        return frames

    def _span(self, sound: Sound, frames: int, seed: int) -> tuple[int, int]:
        """Return the first frame wanted, and how many, at the file's own rate."""
        if self._params.rate is None or self._params.seconds is None:
            return 0, sound.frames
        count = -(-frames * sound.rate // self._params.rate)
        if count * sound.channels * 4 > BYTES_MAX:
            raise BadSample(f"expected at most {BYTES_MAX} bytes of sound, got {count} frames")
        free = sound.frames - count
        if free <= 0:
            return 0, sound.frames
        return (int(uniform(seed, 0) * (free + 1)) if self._params.random else 0), count


def _asked(data: memoryview) -> Sound:
    """Return what libsndfile says: it looks for the end of an Ogg and at every frame of an MP3."""
    with _opened(data) as file:
        if file.format not in _FORMATS:
            raise BadSample(f"expected WAV, FLAC, MP3 or Ogg, got {file.format}")
        return checked(Sound(file.frames, file.samplerate, file.channels, file.format not in {"MP3", "OGG"}))


class _Bytes(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        # Where lengths are wrong libsndfile seeks to before the beginning; an exception would end up on stderr.
        return super().seek(max(0, offset) if whence == 0 else offset, whence)


def _opened(data: memoryview) -> Any:  # noqa: ANN401 - soundfile has no types
    try:
        return soundfile.SoundFile(_Bytes(data))
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        raise BadSample(f"expected WAV, FLAC, MP3 or Ogg, got {len(data)} bytes: {_said(error)}") from error


def _read(data: memoryview, sound: Sound, start: int, count: int) -> NDArray[np.float32]:
    """Return float32 [frames, channels]; silence for the few that a lossy coding may lack."""
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
    with np.errstate(over="ignore"):  # infinity is clipped like all that is too loud
        return np.clip(np.rint(values * 32768), -32768, 32767).astype(np.int16)
