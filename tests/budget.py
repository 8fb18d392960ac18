"""How much of what can be tried is tried: less in ``make check`` than in ``make test``, more in ``make nightly``."""

from __future__ import annotations

from hypothesis import settings

WHOLE = 100  # max_examples of the profile of ``make test``
NIGHTLY = 3 * WHOLE


def budget(example_count: int) -> int:
    """Return the examples to try under the profile in use, where ``make test`` tries ``example_count``."""
    return max(1, example_count * settings.default.max_examples // WHOLE)  # type: ignore[union-attr]  # a profile is loaded


def whole() -> bool:
    """Tell whether a test may take the time that it has in ``make test``."""
    return bool(settings.default.max_examples >= WHOLE)  # type: ignore[union-attr]  # see above


def nightly() -> bool:
    """Tell whether breadth matters more than time."""
    return bool(settings.default.max_examples >= NIGHTLY)  # type: ignore[union-attr]  # see above
