"""Random numbers of one transform of one sample.

Draw ``i`` of the transform at place ``p`` of its list is draw ``i`` of a stream (see ``codecs.transforms.crop``). That
stream's seed is draw ``64 + p`` of the sample's stream, as 64 bits. So the draw depends on the sample's seed, ``p`` and
``i`` alone, not on the worker or on other transforms. Two fields of one sample with the same transforms at the same
places (an image and its mask) are treated alike.
"""

from __future__ import annotations

from typing import Final

from feedd.codecs.transforms.crop import bits, uniform

_FIRST: Final = 64
"""Draws below this number belong to ``size`` and ``augment``."""


class Draws:
    """The random stream of the transform at ``place`` in the list."""

    __slots__ = ("_index", "_sample", "_seed")

    def __init__(self, sample: int, place: int) -> None:
        self._sample, self._index = sample, place
        self._seed: int | None = None

    @property
    def seed(self) -> int:
        """The seed of the stream: 64 bits."""
        if self._seed is None:
            self._seed = bits(self._sample, _FIRST + self._index)
        return self._seed

    def uniform(self, draw: int) -> float:
        """Return number ``draw``, in [0, 1)."""
        return uniform(self.seed, draw)

    def between(self, draw: int, low: float, high: float) -> float:
        """Return number ``draw`` in a range."""
        return low + (high - low) * self.uniform(draw)

    def below(self, draw: int, count: int) -> int:
        """Return number ``draw`` as one of 0 to ``count`` - 1."""
        return int(self.uniform(draw) * count)
