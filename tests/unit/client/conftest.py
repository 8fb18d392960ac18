"""Fixtures of the client's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.cuda.fixture import cuda  # noqa: F401 - a fixture
from tests.fakes.feed_client import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    """Servers and datasets of this test."""
    with Bench(short_dir) as bench:
        yield bench
