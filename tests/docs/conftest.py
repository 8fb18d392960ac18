"""One world for all blocks of the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.data import objects
from tests.docs.world import World, new_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def world(forks: None) -> Iterator[World]:
    """A daemon, and the data that the documents speak of."""
    with new_world(objects()) as found:
        yield found
