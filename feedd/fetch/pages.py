"""Closes listings that were not read to their end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from feedd.values import ObjectRef


@contextlib.asynccontextmanager
async def closing_pages(pages: AsyncIterator[list[ObjectRef]]) -> AsyncGenerator[AsyncIterator[list[ObjectRef]], None]:
    """Yield ``pages`` and close them afterwards if they have ``aclose``, as generators have."""
    try:
        yield pages
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()
