"""An event loop in a thread of its own, for work whose steps would delay everything else on the caller's loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WorkLoop(Protocol):
    """Where coroutines run: on the caller's loop, or on another. Entered as a context manager on the caller's loop.

    ``run`` and ``post`` are called on the caller's loop, ``report`` on the work loop. Posts and runs begin in the order
    of these calls. Reports arrive in their order, and before the result of a run that made them.
    """

    async def __aenter__(self) -> Self:
        """Start the loop."""

    async def __aexit__(self, *exc: object) -> None:
        """Cancel what still runs, and stop the loop."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of ``work()``, run in the caller's context.

        If the caller is cancelled, so is the work, and this call returns only when the work has ended.

        Raises:
            Whatever the work raised.
        """

    def post(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a function on the work loop; do not wait."""

    def report(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a function on the caller's loop; do not wait."""


class CallersLoop:
    """A ``WorkLoop`` that is the caller's own loop; every call is direct."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: there is no other loop."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Await ``work()``."""
        return await work()

    def post(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call the function."""
        call(*args, **kwargs)

    def report(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call the function."""
        call(*args, **kwargs)


class LoopThread:
    """A ``WorkLoop`` in a daemon thread, of the same kind as the loop that enters it.

    All reports of one turn of the work loop wake the caller's loop once, because a wake-up costs 20 us and a report 1.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[_Run[Any], asyncio.Task[Any]] = {}  # used by the thread only
        self._reporting = False  # used by the thread only
        self._stopped = False

    def __repr__(self) -> str:
        return f"LoopThread({self._name}, {len(self._tasks)} running)"

    async def __aenter__(self) -> Self:
        home = asyncio.get_running_loop()
        work = type(home)()
        self._ended: asyncio.Future[None] = home.create_future()
        self._stop = asyncio.Event()
        self._to_work, self._to_home = _Mailbox(work), _Mailbox(home)
        self._thread = threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            work.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stopped = True
        self.post(self._stop.set)
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.done():
            try:
                await asyncio.wait([self._ended])
            except asyncio.CancelledError as error:
                cancelled = error
        self._thread.join()  # its last act was to report its end
        if cancelled is not None:
            raise cancelled

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``work()`` in the thread; see ``WorkLoop.run``."""
        assert not self._stopped, "the loop was stopped"
        run = _Run(work)
        self.post(self._begin, run)
        cancelled: asyncio.CancelledError | None = None
        while not run.ended.done():
            try:
                await asyncio.wait([run.ended])
            except asyncio.CancelledError as error:
                cancelled = error
                self.post(self._cancel, run)
        if cancelled is not None:
            raise cancelled
        return run.take()

    def post(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a function on the work loop; see ``WorkLoop.post``."""
        self._to_work.put(lambda: call(*args, **kwargs))
        self._to_work.wake()

    def report(self, call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a function on the caller's loop, with the other reports of this turn; see ``WorkLoop.report``."""
        self._to_home.put(lambda: call(*args, **kwargs))
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._send_reports)

    def _send_reports(self) -> None:
        self._reporting = False
        self._to_home.wake()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop; the body of the thread."""
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._live())
        finally:
            self._to_home.put(self._finish)
            self._to_home.wake()

    async def _live(self) -> None:
        """Wait for the stop, then cancel what still runs."""
        await self._stop.wait()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # their ends are reported by callbacks

    def _finish(self) -> None:
        self._ended.set_result(None)

    def _begin(self, run: _Run[Any]) -> None:
        task = asyncio.get_running_loop().create_task(_await(run.work), context=run.context)
        self._tasks[run] = task
        task.add_done_callback(lambda task: self._note_end(run, task))

    def _cancel(self, run: _Run[Any]) -> None:
        task = self._tasks.get(run)
        if task is not None:
            task.cancel()

    def _note_end(self, run: _Run[Any], task: asyncio.Task[Any]) -> None:
        del self._tasks[run]
        run.error = asyncio.CancelledError() if task.cancelled() else task.exception()
        run.result = None if run.error is not None else task.result()
        self.report(run.ended.set_result, None)


class _Run(Generic[_T]):
    """One run of a coroutine.

    Attributes:
        work: makes the coroutine.
        context: context of the caller.
        ended: done on the caller's loop once the outcome is known.
        result: result of the coroutine.
        error: error of the coroutine. Not an error of ``ended``: its traceback refers to frames with the caller's sink.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self.work = work
        self.context = contextvars.copy_context()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.result: _T | None = None
        self.error: BaseException | None = None

    def take(self) -> _T:
        """Return the result, or raise the error."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            result: Any = self.result
            return result  # type: ignore[no-any-return]  # the coroutine's result, which may be None
        finally:
            del error  # its traceback refers to this frame


async def _await(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Return the result of ``work()``; an error of making the coroutine is an error of the work."""
    return await work()


class _Mailbox:
    """Calls for an event loop from another thread; one wake-up delivers all that wait.

    Args:
        loop: event loop that makes the calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._awake = False

    def put(self, call: Callable[[], object]) -> None:
        """Add a call, without a wake-up."""
        self._calls.append(call)

    def wake(self) -> None:
        """Have the waiting calls made."""
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits there
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._awake = False  # before the calls are taken: a call that is added now wakes the loop again
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - reported as the loop reports errors of callbacks
                context = {"message": "a call from another thread failed", "exception": error}
                self._loop.call_exception_handler(context)
