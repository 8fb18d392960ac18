"""Streams progress to a client that reads at its own speed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from feedd.wire.admin_messages import progress_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.errors import FeeddError
    from feedd.warming import WarmProgress
    from feedd.wire import feedd_pb2 as pb

_FAILURES_PER_MESSAGE = 256


class ProgressStream:
    """Holds the latest progress and the unsent errors; all changes between two messages go into one message."""

    def __init__(self) -> None:
        self._latest: WarmProgress | None = None
        self._failures: deque[FeeddError] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def report(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        """Record progress, and an error if there is one."""
        self._latest = progress
        if failure is not None:
            self._failures.append(failure)
        self._news.set()

    def end(self) -> None:
        """Report that nothing more follows."""
        self._ended = True
        self._news.set()

    async def send(self, write: Callable[[pb.WarmProgress], Awaitable[object]]) -> None:
        """Write progress until the end is reported."""
        while True:
            await self._news.wait()
            self._news.clear()
            ended, progress, self._latest = self._ended, self._latest, None
            while progress is not None:
                count = min(len(self._failures), _FAILURES_PER_MESSAGE)
                await write(progress_message(progress, [self._failures.popleft() for _ in range(count)]))
                if not self._failures:
                    break
            if ended:
                return
