"""Runs a body until an event says that it is no longer wanted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def ended_by(event: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the body when ``event`` is set, and continue after it as if it had ended.

    The body runs in the caller's own task, so the caller may later close what the body opened.
    """
    loop = asyncio.get_running_loop()

    async def watch(scope: asyncio.Timeout) -> None:
        await event.wait()
        scope.reschedule(loop.time())

    async with asyncio.TaskGroup() as group:
        scope = asyncio.timeout(None)
        watcher: asyncio.Task[None] | None = None
        try:
            async with scope:
                watcher = group.create_task(watch(scope))
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            if watcher is not None:
                watcher.cancel()
