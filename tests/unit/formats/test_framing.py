"""What readers of shards have in common."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.shard_index import numbered
from tests.budget import budget


@settings(max_examples=budget(40), deadline=None)
@given(sample_count=st.one_of(st.integers(0, 30), st.integers(9_990, 10_010), st.integers(0, 70_000)))
def test_samples_without_names_are_numbered(sample_count: int) -> None:
    """Keys are ordinals of eight digits, and sort as the samples lie."""
    blob, ends = numbered(sample_count)
    assert blob == b"".join(b"%08d" % ordinal for ordinal in range(sample_count))
    assert ends.dtype == np.int64
    assert ends.tolist() == [8 * (ordinal + 1) for ordinal in range(sample_count)]
