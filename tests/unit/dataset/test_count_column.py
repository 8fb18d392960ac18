"""Sample counts in a column: as a dictionary holds them."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.dataset.assignment import Assignment
from feedd.dataset.step_counts import CountColumn, known_counts


def test_a_column_is_a_mapping() -> None:
    """Unknown counts are missing, and may be learned."""
    counts = CountColumn(np.array([3, -1, 0], np.int64))
    assert (len(counts), list(counts), dict(counts)) == (2, [0, 2], {0: 3, 2: 0})
    assert (counts.get(1), 1 in counts, counts.get(-1), counts.get(3)) == (None, False, None, None)
    assert known_counts(counts, 3) is None
    assert Assignment(np.array([0, 1])).counts(counts) is None
    assert counts.setdefault(1, 8) == 8
    assert counts.setdefault(1, 9) == 8
    assert len(counts) == 3
    whole = known_counts(counts, 3)
    assert whole is not None
    assert whole.tolist() == [3, 8, 0]
    share = Assignment(np.array([2, 1])).counts(counts)
    assert share is not None
    assert share.tolist() == [0, 8]


def test_counts_are_never_forgotten() -> None:
    """Plans rest on them."""
    counts = CountColumn(np.array([3], np.int64))
    with pytest.raises(TypeError, match="expected counts to stay known"):
        del counts[0]
