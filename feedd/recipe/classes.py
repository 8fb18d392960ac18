"""Class names listed in a recipe: their order numbers the classes, whatever the data holds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHARS_MAX: Final = 48 << 10
"""Limit for all names together, as they travel with every request to a worker: about 4,000 names of 12 letters."""


def check_classes(classes: Sequence[str]) -> None:
    """Check that class names are unique, not empty, and without blanks around them.

    Raises:
        ValueError: a name is invalid, or the names are too long in total.
    """
    if len(set(classes)) < len(classes):
        twice = next(name for place, name in enumerate(classes) if name in classes[:place])
        raise ValueError(f"expected different classes, got {twice!r} twice")
    wrong = next((name for name in classes if not name or name != name.strip()), None)
    if wrong is not None:
        raise ValueError(f"expected class names without blanks around them, got {wrong!r}")
    chars = sum(map(len, classes))
    if chars > _CHARS_MAX:
        raise ValueError(f"expected at most {_CHARS_MAX} characters in all class names, got {chars}")
