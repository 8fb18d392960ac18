"""What is known of an image between two transforms. Pure: the layout of batches follows from it."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

SIDE_MAX: Final = 16384
"""Limit for the rows or columns that a recipe may ask for."""

PIXELS_MAX: Final = 1 << 27
"""Limit for the pixels of a file or of a transform's result: 400 MB are a decompression bomb or a mistake."""

CV_DTYPES: Final = frozenset({"uint8", "uint16", "float32"})
"""Dtypes that can be resized and padded."""

Size: TypeAlias = int | tuple[int, int]
"""One number for both sides, or (height, width)."""


class Picture(NamedTuple):
    """Properties of an image of rows x columns x channels.

    Attributes:
        height: rows; None: varies between samples.
        width: columns; None: varies between samples.
        channels: channels; None: varies between samples.
        dtype: NumPy's name of the dtype.
        first: whether channels come first; only ``cast`` may follow then.
    """

    height: int | None
    width: int | None
    channels: int | None
    dtype: str
    first: bool = False

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the array; None if samples differ."""
        if self.height is None or self.width is None or self.channels is None:
            return None
        if self.first:
            return (self.channels, self.height, self.width)
        return (self.height, self.width, self.channels)

    def sized(self, height: int | None, width: int | None) -> Picture:
        """Return the picture with other sides.

        Raises:
            ValueError: too many pixels, or channels come first.
        """
        self.require(channels_last=True)
        if height is not None and width is not None and not 0 < height * width <= PIXELS_MAX:
            raise ValueError(f"expected 1 to {PIXELS_MAX} pixels after a transform, got {height}x{width}")
        return self._replace(height=height, width=width)

    def require(self, *, dtypes: frozenset[str] | None = None, channels_last: bool = False) -> None:
        """Check that a transform accepts this picture.

        Raises:
            ValueError: the dtype or the order of dimensions is wrong.
        """
        if dtypes is not None and self.dtype not in dtypes:
            raise ValueError(f"expected {' or '.join(sorted(dtypes))} before this transform, got {self.dtype}")
        if channels_last and self.first:
            raise ValueError("expected channels_first to come after all other transforms but cast, got it before")


def sides(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def check_size(size: Size) -> None:
    """Check that sides are within 1 to SIDE_MAX.

    Raises:
        ValueError: a side is out of bounds.
    """
    if not all(1 <= side <= SIDE_MAX for side in sides(size)):
        raise ValueError(f"expected sides of 1 to {SIDE_MAX} pixels, got {list(sides(size))}")


def check_span(name: str, low: float, high: float, least: float, most: float) -> None:
    """Check that a range is ascending and within its bounds.

    Raises:
        ValueError: the range is descending or out of bounds.
    """
    if not least <= low <= high <= most:
        raise ValueError(f"expected {name} to rise within {least:g} to {most:g}, got {low:g} to {high:g}")
