"""Runs an async iterator in a thread with its own loop, and yields its items on this loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


async def iterate_in_thread(
    make: Callable[[], AsyncGenerator[T, None]], *, name: str, ahead_count: int
) -> AsyncGenerator[T, None]:
    """Yield what ``make()`` yields; it runs in a thread, at most ``ahead_count`` items ahead.

    It runs in the caller's context, so it may name its steps in the caller's Open. Close the generator
    (``contextlib.aclosing``): the thread is cancelled and joined before that returns. Errors of the iterator are raised
    here unchanged.
    """
    pump = _Pump(make, ahead_count)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(pump.run,), name=name, daemon=True)
    thread.start()
    try:
        while True:
            item = await pump.items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
            pump.allow_one_more()
    finally:
        pump.stop()
        await _whatever_happens(pump.ended)
        thread.join()  # its last act was to set ``ended``


async def _whatever_happens(ended: asyncio.Future[None]) -> None:
    """Wait for the thread even if cancelled meanwhile: the thread was told to stop, and its steps have deadlines."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _Pump(Generic[T]):
    """The thread's side: runs the iterator, hands items over, waits for credit."""

    def __init__(self, make: Callable[[], AsyncGenerator[T, None]], ahead_count: int) -> None:
        self._make = make
        self._queued_max = ahead_count
        self._consumer = asyncio.get_running_loop()
        self.items: asyncio.Queue[T | _End] = asyncio.Queue()  # bounded by the credit
        self.ended: asyncio.Future[None] = self._consumer.create_future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._credit: asyncio.Semaphore | None = None
        self._stopping = False

    def run(self) -> None:
        """Run the iterator; the body of the thread."""
        error: BaseException | None = None
        try:
            asyncio.run(self._pump())
        except asyncio.CancelledError:
            pass  # stopped by the consumer, which no longer listens
        except BaseException as raised:  # noqa: BLE001 - the consumer raises it again
            error = raised
        with contextlib.suppress(RuntimeError):  # the consumer's loop is closed
            self._consumer.call_soon_threadsafe(self._finish, error)

    def allow_one_more(self) -> None:
        """Return the credit of a consumed item."""
        if self._loop is not None and self._credit is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._credit.release)

    def stop(self) -> None:
        """Cancel the iterator. Either this method sees the task, or the task sees the flag."""
        self._stopping = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _pump(self) -> None:
        self._credit = asyncio.Semaphore(self._queued_max)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        if self._stopping:
            return
        async with contextlib.aclosing(self._make()) as items:
            async for item in items:
                await self._credit.acquire()
                self._consumer.call_soon_threadsafe(self.items.put_nowait, item)

    def _finish(self, error: BaseException | None) -> None:
        self.items.put_nowait(_End(error))
        self.ended.set_result(None)
