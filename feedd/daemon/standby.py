"""A daemon that is started in advance: it opens everything two daemons can share, and waits for the rest."""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from feedd.cache.lock import LOCK_NAME
from feedd.errors import BadConfig
from feedd.flow.pools import CACHE_DISK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager, AsyncExitStack
    from pathlib import Path

    from feedd.protocols import Clock

    OpenPage = Callable[[], AbstractAsyncContextManager[str]]
    """Opens the status page and returns its address; raises BadConfig if the port is taken."""

_LOOK_S = 0.02
_PORT_TRIES = 3500  # 70 s: a daemon whose disk is slow closes its page after the flush of its cache


@asynccontextmanager
async def owner_gone(directory: Path) -> AsyncIterator[None]:
    """Wait until no daemon owns the cache ``directory``. Other daemons that stand by wait until the exit.

    A thread waits for the lock, because the time between two looks would be part of the trainer's pause. If the wait is
    cancelled, the thread goes on, and the daemon ends without it.
    """
    place = -1
    try:
        place = await CACHE_DISK.run(_first_in_line, directory)
        await CACHE_DISK.run(_wait_for_owner, directory / LOCK_NAME)
    except OSError:
        pass  # there is no owner, or the directory cannot be used, which its next opening reports
    try:
        yield
    finally:
        if place >= 0:
            os.close(place)


def _first_in_line(directory: Path) -> int:
    """Return a descriptor of the directory; its lock is the first place in the line of standby daemons. Blocks."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _wait_for_owner(lock: Path) -> None:
    """Wait until the lock is free. An owner whose directory was removed holds a lock in the new one. Blocks."""
    is_free = False
    while not is_free:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            is_free = os.path.samestat(os.fstat(fd), lock.lstat())
        finally:
            os.close(fd)


async def status_if_free(stack: AsyncExitStack, open_page: OpenPage) -> str | None:
    """Open the status page into ``stack``; None: the former daemon on this machine still has the port."""
    try:
        return await stack.enter_async_context(open_page())
    except BadConfig:
        return None


async def status_when_free(stack: AsyncExitStack, open_page: OpenPage, clock: Clock) -> str:
    """Open the status page into ``stack`` once the former daemon has released its port, which is its last step.

    Raises:
        BadConfig: the port stays taken, or there is another reason.
    """
    for _ in range(_PORT_TRIES):
        if bound := await status_if_free(stack, open_page):
            return bound
        await clock.sleep_s(_LOOK_S)
    return await stack.enter_async_context(open_page())
