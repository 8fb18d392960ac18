"""Parameters of the ``audio`` codec, and the resulting tensors. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from feedd.values import FieldKind, TensorSpec

RATE_MAX: Final = 768_000
CHANNELS_MAX: Final = 64
BYTES_MAX: Final = 1 << 30
"""Limit for a decoded sample, before and after resampling."""


class AudioParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``audio``: WAV, FLAC, MP3 and Ogg as [channels, frames], or [frames] with ``mono``.

    Attributes:
        rate: frames per second to resample to; None keeps each file's rate.
        mono: the mean of all channels, without a channel dimension.
        channels: number of channels that each file must have; None: any number.
        seconds: length of each sample: longer files are cut at the end, shorter ones filled with silence. DENSE if the
            number of channels is also known.
        random: cut at a position drawn from the sample's seed instead of at the end.
        dtype: float32 within -1 to 1, or int16.
    """

    rate: int | None = None
    mono: bool = False
    channels: int | None = None
    seconds: float | None = None
    random: bool = False
    dtype: Literal["float32", "int16"] = "float32"

    def __post_init__(self) -> None:
        if self.rate is not None and not 1 <= self.rate <= RATE_MAX:
            raise ValueError(f"expected a rate of 1 to {RATE_MAX}, got {self.rate}")
        if self.channels is not None and (self.mono or not 1 <= self.channels <= CHANNELS_MAX):
            raise ValueError(
                f"expected mono, or 1 to {CHANNELS_MAX} channels, got {self.channels} and mono={self.mono}"
            )
        if self.seconds is not None and self.rate is None:
            raise ValueError("expected rate together with seconds, got seconds alone")
        if self.random and self.seconds is None:
            raise ValueError("expected seconds together with random, got random alone")
        if self.seconds is not None and not 1 <= self.seconds * (self.rate or 1) <= BYTES_MAX // 4 // (
            self.channels or 1
        ):
            raise ValueError(
                f"expected seconds of at least one frame and at most {BYTES_MAX} bytes, got {self.seconds:g}"
            )

    @property
    def frames(self) -> int | None:
        """Frames of every sample; None: the number varies."""
        return None if self.seconds is None or self.rate is None else round(self.seconds * self.rate)

    @property
    def measured(self) -> bool:
        """Whether the shape is known only from each sample's header."""
        return self.spec("").kind is not FieldKind.DENSE

    def shape(self, channels: int, frames: int) -> tuple[int, ...]:
        """Return the shape of a sample with these channels and frames."""
        return (frames,) if self.mono else (channels, frames)

    def spec(self, name: str) -> TensorSpec:
        """DENSE if frames and channels are known, else RAGGED."""
        ndim = 1 if self.mono else 2
        frames, channels = self.frames, 1 if self.mono else self.channels
        if frames is None or channels is None:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=ndim)
        shape = self.shape(channels, frames)
        return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=self.dtype, shape=shape, ndim=ndim)
