"""How long some audio is, from its first bytes: WAV and FLAC say so, without a decoder."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.errors import BadSample
from feedd.recipe.audio_params import CHANNELS_MAX, RATE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN: Final = frozenset({1, 3, 6, 7, 0xFFFE})
"""WAV's tags of codings with a fixed size of a frame: PCM, float, A-law, mu-law; the last says it elsewhere."""
_UNKNOWN: Final = frozenset({0, 0xFFFFFFFF})
"""What is written for the length of a stream that was piped."""
_CHUNKS_MAX: Final = 4096


class Sound(NamedTuple):
    """A file's own word.

    Attributes:
        frames: samples of each channel.
        rate: of them in a second.
        channels: how many.
        exact: whether decoding must give exactly so many frames; MP3 and Ogg may miss a few at the ends.
    """

    frames: int
    rate: int
    channels: int
    exact: bool = True


def checked(sound: Sound) -> Sound:
    """Return ``sound`` if it makes sense.

    Raises:
        BadSample: no rate, no channels, or too many.
    """
    if not (1 <= sound.rate <= RATE_MAX and 1 <= sound.channels <= CHANNELS_MAX and sound.frames >= 0):
        raise BadSample(
            f"expected 1 to {CHANNELS_MAX} channels at 1 to {RATE_MAX} Hz, got {sound.channels} at {sound.rate}"
        )
    return sound


def read_header(data: memoryview) -> Sound | None:
    """Return what a WAV's or FLAC's header says; None: it takes a decoder to know.

    Raises:
        BadSample: cut short, or nonsense.
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
            if form is None or form[0] not in _PLAIN or not form[3]:
                return None
            there = len(data) - at
            if size not in _UNKNOWN and size > there:
                raise BadSample(f"expected {size} bytes of sound, got {there}")
            _, channels, rate, block = form
            return checked(Sound((there if size in _UNKNOWN else size) // block, rate, channels))
    raise BadSample(f"expected sound in a WAV, got {len(data)} bytes without")


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
    return checked(Sound(frames, packed >> 44, (packed >> 41 & 7) + 1))
