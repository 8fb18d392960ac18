"""What is known of an image between two transforms. Pure: the daemon lays out batches by it."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

SIDE_MAX: Final = 16384
"""No recipe may ask for more rows or columns."""

PIXELS_MAX: Final = 1 << 27
"""Nor make more pixels of an oddly shaped image; nor may a file hold more: 400 MB are a bomb, or a mistake."""

CV_DTYPES: Final = frozenset({"uint8", "uint16", "float32"})
"""What can be resized and padded."""

Size: TypeAlias = int | tuple[int, int]
"""Both sides, or height and width."""


class Picture(NamedTuple):
    """Rows x columns x channels.

    Attributes:
        height: None: each sample has its own.
        width: likewise.
        channels: likewise.
        dtype: NumPy's name.
        first: whether channels come first; nothing but numbers can be changed then.
    """

    height: int | None
    width: int | None
    channels: int | None
    dtype: str
    first: bool = False

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the array; None where samples differ."""
        if self.height is None or self.width is None or self.channels is None:
            return None
        if self.first:
            return (self.channels, self.height, self.width)
        return (self.height, self.width, self.channels)

    def sized(self, height: int | None, width: int | None) -> Picture:
        """Return it with other sides.

        Raises:
            ValueError: too many pixels, or channels come first.
        """
        self.require(channels_last=True)
        if height is not None and width is not None and not 0 < height * width <= PIXELS_MAX:
            raise ValueError(f"expected 1 to {PIXELS_MAX} pixels after a transform, got {height}x{width}")
        return self._replace(height=height, width=width)

    def require(self, *, dtypes: frozenset[str] | None = None, channels_last: bool = False) -> None:
        """Make sure that a transform can take it.

        Raises:
            ValueError: it cannot.
        """
        if dtypes is not None and self.dtype not in dtypes:
            raise ValueError(f"expected {' or '.join(sorted(dtypes))} before this transform, got {self.dtype}")
        if channels_last and self.first:
            raise ValueError("expected channels_first to come after all other transforms but cast, got it before")


def sides(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def check_size(size: Size) -> None:
    """Refuse sides that nobody can mean.

    Raises:
        ValueError: less than 1 or more than SIDE_MAX.
    """
    if not all(1 <= side <= SIDE_MAX for side in sides(size)):
        raise ValueError(f"expected sides of 1 to {SIDE_MAX} pixels, got {list(sides(size))}")


def check_span(name: str, low: float, high: float, least: float, most: float) -> None:
    """Refuse a range that is none, or leaves its bounds.

    Raises:
        ValueError: it does.
    """
    if not least <= low <= high <= most:
        raise ValueError(f"expected {name} to rise within {least:g} to {most:g}, got {low:g} to {high:g}")
