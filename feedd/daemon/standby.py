"""A successor that is started in advance: it opens everything two daemons can share, and waits for the rest."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from feedd.cache.lock import LOCK_NAME
from feedd.errors import BadConfig
from feedd.flow.pools import CACHE_DISK

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AsyncExitStack
    from pathlib import Path

    from feedd.protocols import Clock

    OpenPage = Callable[[], AbstractAsyncContextManager[str]]
    """Opens the status page and returns its address; raises BadConfig if the port is taken."""

_LOOK_S = 0.02
_PORT_TRIES = 250


async def owner_gone(directory: Path) -> None:
    """Wait until no daemon owns the cache ``directory``. The first to lock it is the next owner.

    A thread waits for the lock, because the time between two looks would be part of the trainer's pause. If the wait is
    cancelled, the thread goes on; the daemon then ends within a second.
    """
    try:
        fd = await CACHE_DISK.run(os.open, directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # there is no owner, or the directory cannot be used, which its next opening reports
    try:
        await CACHE_DISK.run(fcntl.flock, fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


async def status_if_free(stack: AsyncExitStack, open_page: OpenPage) -> str | None:
    """Open the status page into ``stack``; None: the predecessor on this machine still has the port."""
    try:
        return await stack.enter_async_context(open_page())
    except BadConfig:
        return None


async def status_when_free(stack: AsyncExitStack, open_page: OpenPage, clock: Clock) -> str:
    """Open the status page into ``stack`` once the predecessor has released its port, which is its last step.

    Raises:
        BadConfig: the port stays taken, or there is another reason.
    """
    for _ in range(_PORT_TRIES):
        if bound := await status_if_free(stack, open_page):
            return bound
        await clock.sleep_s(_LOOK_S)
    return await stack.enter_async_context(open_page())
