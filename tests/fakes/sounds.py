"""Sounds whose values are known at every instant."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

if TYPE_CHECKING:
    from numpy.typing import NDArray


def sines(frames: int, rate: int, *hertz: float, start: float = 0.0) -> NDArray[np.float32]:
    """Return float32 [frames, channels]: one sine of half the scale per channel, from ``start`` seconds on."""
    at = start + np.arange(frames)[:, None] / rate
    values: NDArray[np.float64] = 0.5 * np.sin(2 * np.pi * at * np.array(hertz))
    return values.astype(np.float32)


def sound(values: NDArray[Any], rate: int, kind: str = "WAV", subtype: str | None = None) -> bytes:
    """Encode [frames, channels] by libsndfile."""
    buffer = io.BytesIO()
    soundfile.write(buffer, values, rate, format=kind, subtype=subtype)
    return buffer.getvalue()
