"""Names of classes that a recipe gives: their order is what numbers them, whatever the data holds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHARS_MAX: Final = 48 << 10
"""Of all names: they travel with every request to a worker. 4,000 of a dozen letters each."""


def check_classes(classes: Sequence[str]) -> None:
    """Make sure that each class has a name of its own, as it comes without the blanks around it.

    Raises:
        ValueError: some have not, or there are too many.
    """
    if len(set(classes)) < len(classes):
        twice = next(name for place, name in enumerate(classes) if name in classes[:place])
        raise ValueError(f"expected different classes, got {twice!r} twice")
    wrong = next((name for name in classes if not name or name != name.strip()), None)
    if wrong is not None:
        raise ValueError(f"expected names of classes without blanks around them, got {wrong!r}")
    chars = sum(map(len, classes))
    if chars > _CHARS_MAX:
        raise ValueError(f"expected at most {_CHARS_MAX} characters of classes, got {chars}")
