"""Two tools of a task group's, for calls that hardly ever need one: nearly free to have, paid for when used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType


class Interruptible:
    """A context whose body may be ended from outside, as ``asyncio.timeout`` ends one; its task goes on behind it.

    Entered and left by the same task, once.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self._interrupted = False

    def interrupt(self) -> None:
        """End the body, if it still runs."""
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels_before = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if not self._interrupted:
            return False
        assert task is not None
        # who else cancelled the task is heard: the cancellation is swallowed only where it was ours alone
        return task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError


class Beside:
    """At most one task beside the caller's own, begun late if at all; whoever has it waits for its end."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether there is one."""
        return self._task is not None

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Start it; may be called by a callback of the loop."""
        assert self._task is None, "one task beside the caller's"
        self._task = asyncio.get_running_loop().create_task(work)

    def cancel(self) -> None:
        """Have it end, if there is one."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait for its end, even if cancelled, which is handed on to it.

        Raises:
            Whatever it raised, unless it was cancelled. CancelledError: we were; what it ended with is dropped.
        """
        task, cancelled = self._task, None
        while task is not None and not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is None:
                    task.cancel()
                cancelled = error
        if cancelled is not None:
            if task is not None and not task.cancelled():
                task.exception()  # looked at: what it ended with is dropped
            try:
                raise cancelled
            finally:
                del cancelled  # its traceback leads to this frame, and would keep all that its callers hold
        if task is not None and not task.cancelled():
            task.result()
