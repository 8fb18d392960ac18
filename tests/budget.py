"""How much is tried: less in ``make check`` than in ``make test``, most in ``make nightly``. And how long is waited."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import settings

# max_examples of the profiles
CHECK = 10
TEST = 40
NIGHTLY = 300
PATIENT_S: Final = 240.0
"""How long a test waits for what must come. On a busy machine the work of seconds takes minutes."""
TIME_LIMITS: Final = 5.0
"""The time limit of a test is so many times the limit that its marker names, which is one for an idle machine."""
_SCALE = 100  # the max_examples at which a test tries just as many as it names


def budget(example_count: int) -> int:
    """Return the examples to try under the profile in use: two fifths of ``example_count`` in ``make test``."""
    return max(1, example_count * settings.default.max_examples // _SCALE)  # type: ignore[union-attr]  # a profile is loaded


def nightly() -> bool:
    """Tell whether breadth matters more than time."""
    return bool(settings.default.max_examples >= NIGHTLY)  # type: ignore[union-attr]  # see above


def later(*values: Any, **options: Any) -> Any:
    """Return a parameter that only ``make nightly`` tries: ``make test`` tries the others of the same kind."""
    return pytest.param(*values, marks=pytest.mark.nightly, **options)
