"""Fixtures of the client's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.cuda.fixture import devices
from tests.fakes.feed_client import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

cuda = devices("eager", "lazy", "late-consumer", "late-copies", "random-0")


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    """Servers and datasets of this test."""
    with Bench(short_dir) as bench:
        yield bench
