"""How long a property is searched for a counterexample: whole in ``make test``, a tenth of it in ``make check``."""

from __future__ import annotations

from hypothesis import settings

WHOLE = 100  # max_examples of the profile of ``make test``


def budget(example_count: int) -> int:
    """Return the examples to try under the profile in use, where ``make test`` tries ``example_count``."""
    return max(1, example_count * settings.default.max_examples // WHOLE)  # type: ignore[union-attr]  # a profile is loaded


def whole() -> bool:
    """Tell whether everything is as in ``make test``, however long it takes."""
    return bool(settings.default.max_examples >= WHOLE)  # type: ignore[union-attr]  # see above
