"""Named, bounded thread pools for work that would block the event loop: one pool for each resource that may hang.

Work for one resource never waits for another: neither a silent resolver nor a hanging disk stops other batches. Only
libraries use the loop's default executor; a tidy test keeps feedd from it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_IDLE_S: Final = 10.0
_END_S: Final = 2.0  # an idle thread ends within microseconds, one that reads certificates within tenths of a second
_CANCELLED_MAX: Final = 256  # a longer queue is purged of cancelled jobs


class Pool:
    """Threads that start when there is work, and end when idle for a while.

    They are daemon threads, so a thread that a disk or a resolver delays keeps no process from ending for long.

    Attributes:
        name: name of its threads, after ``feedd-pool-``.
        threads_max: upper bound of threads; further work waits in a queue.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self.threads_max = threads_max
        self._jobs: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._ready = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle_count = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"Pool({self.name}, {len(self._threads)}/{self.threads_max} threads, {len(self._jobs)} jobs waiting)"

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the result of ``work``, run in a thread; a cancellation drops work that has not begun.

        Raises:
            Whatever the work raised. RuntimeError: the system starts no more threads, and the pool has none.
        """
        return await self.begin(work, *args, **kwargs)

    def begin(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Start work like ``run`` and return its future, for callers that wait though cancelled; see ``run_to_end``."""
        job = functools.partial(contextvars.copy_context().run, functools.partial(work, *args, **kwargs))
        return asyncio.wrap_future(self._submit(job), loop=asyncio.get_running_loop())

    def close(self, *, wait: bool) -> None:
        """End the threads after the work that was handed over; later work starts new threads.

        Args:
            wait: wait for the threads, two seconds at most; idle threads end at once.
        """
        with self._ready:
            self._closed = True
            self._ready.notify_all()
            threads = [*self._threads]
        deadline_s = time.monotonic() + _END_S
        for thread in threads if wait else ():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _submit(self, job: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        with self._ready:
            if len(self._jobs) > _CANCELLED_MAX:
                self._jobs = deque(one for one in self._jobs if not one[0].cancelled())
            self._jobs.append((future, job))
            if len(self._jobs) <= self._idle_count:
                self._ready.notify()
            elif len(self._threads) < self.threads_max:
                self._start()
        return future

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._serve, name=f"feedd-pool-{self.name}-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not number:
                self._jobs.pop()
                raise
        else:
            self._threads.add(thread)

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            future, job = taken
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001 - raised in the waiting task
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, job, taken  # an idle thread keeps no references

    def _take(self) -> tuple[Future[Any], Callable[[], object]] | None:
        with self._ready:
            self._idle_count += 1
            try:
                while not self._jobs:
                    if self._closed or (not self._ready.wait(_IDLE_S) and not self._jobs):
                        self._threads.discard(threading.current_thread())
                        return None
                return self._jobs.popleft()
            finally:
                self._idle_count -= 1


_CORES: Final = len(os.sched_getaffinity(0))
CPU: Final = Pool("cpu", max(4, min(32, _CORES)))
"""Computing on memory: planning, parsing, copying batches. Uses no disk and no network."""
CACHE_DISK: Final = Pool("cache-disk", 4)
"""Small reads and writes on the cache's disk, beside the cache's own threads; all of them hang with the disk."""
LOCAL_FILES: Final = Pool("local-files", 8)
"""Files that users or operators name: data on local disks, certificates, quarantine."""
DNS: Final = Pool("dns", 4)
"""Host name resolution, which may take arbitrarily long."""


@atexit.register
def _end_threads() -> None:
    """Wait for threads that may load certificates: OpenSSL frees its tables at exit, and using them later crashes."""
    for pool in (CPU, LOCAL_FILES):
        pool.close(wait=True)
