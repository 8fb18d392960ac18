"""The store of these tests, and what closes their nodes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.fakes.cluster import server_of_twelve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.fakes.s3.server import S3Server


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Twelve objects of several sizes, with checksums."""
    with server_of_twelve() as started:
        yield started


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Close nodes at the end, the last one first."""
    async with AsyncExitStack() as opened:
        yield opened
