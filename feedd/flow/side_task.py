"""Two tools in place of a task group, for calls that rarely need one: nearly free until used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType


class Interruptible:
    """A context whose body can be ended from outside, as by ``asyncio.timeout``; its task continues after the body.

    Entered and left by the same task, once.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancels_before = 0
        self._interrupted = False

    def interrupt(self) -> None:
        """End the body if it is still running."""
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
        # other cancellations are kept: only a cancellation by ``interrupt`` alone is swallowed
        return task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError


class SideTask:
    """At most one task in addition to the caller's, started later or never; the owner waits for its end."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether the task was started."""
        return self._task is not None

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Start the task; may be called by a callback of the loop."""
        assert self._task is None, "only one additional task"
        self._task = asyncio.get_running_loop().create_task(work)

    def cancel(self) -> None:
        """Cancel the task, if there is one."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait for the task's end, even if cancelled; the cancellation is passed on to the task.

        Raises:
            Whatever the task raised, unless it was cancelled. CancelledError: this call was cancelled; the task's
                result is dropped.
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
                task.exception()  # retrieved, because the result is dropped
            try:
                raise cancelled
            finally:
                del cancelled  # its traceback refers to this frame and would keep everything its callers hold
        if task is not None and not task.cancelled():
            task.result()
