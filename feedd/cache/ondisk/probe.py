"""Probes a disk in a separate thread, so that a hanging disk blocks only that thread."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from feedd.flow.pools import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBE_NAME = "probe"
_PATTERN = bytes(range(256)) * 16


def try_directory(directory: Path) -> None:
    """Write a page to a file in ``directory``, sync it to the disk, read it back and remove it. Blocking.

    Raises:
        OSError: the disk failed, or the page came back with other bytes.
    """
    directory.mkdir(mode=0o700, exist_ok=True)  # another process may have removed it
    path = directory / PROBE_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, _PATTERN, 0)
        os.fsync(fd)
        if os.pread(fd, len(_PATTERN), 0) != _PATTERN:
            raise OSError(f"{path} does not hold the bytes just written to it")
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)


class Prober:
    """Runs one probe at a time; while a probe hangs, further probes fail at once."""

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = probe
        self._thread = Pool("cache-probe", 1)
        self._last: asyncio.Future[None] | None = None

    async def run(self, deadline_s: float) -> bool:
        """Return whether a probe succeeded within the deadline."""
        if self._last is not None and not self._last.done():
            return False
        waiting = self._last = self._thread.begin(self._probe)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(waiting)
        except (OSError, TimeoutError):
            # Retrieves a late exception, so that asyncio does not log it.
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            return False
        return True

    def close(self) -> None:
        """End the thread; a hanging thread is abandoned."""
        self._thread.close(wait=self._last is None or self._last.done())
