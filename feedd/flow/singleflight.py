"""Runs work once for all concurrent callers; the run ends when no caller wants it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from feedd.errors import Draining

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Flight(Generic[K, V]):
    """One run: a future of its result, and the number of interested callers.

    Attributes:
        key: the run's key.
        result: resolves when the run has ended; read it, never cancel it.
        interest: number of callers that joined and did not leave.
    """

    def __init__(self, key: K) -> None:
        self.key = key
        self.result: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self.interest = 0
        self.task: asyncio.Task[V | None] | None = None
        self.error: Exception | None = None


class SingleFlight(Generic[K, V]):
    """Runs started on first request as tasks of ``group``, shared by all concurrent callers with the same key.

    A failed run fails its current callers and no later ones. ``ended(key, error)`` is called once per run, however it
    ended (even cancelled before its first step), before any waiting caller continues. ``error`` is None for success.
    """

    def __init__(
        self, group: asyncio.TaskGroup, ended: Callable[[K, BaseException | None], None] | None = None
    ) -> None:
        self._group = group
        self._ended = ended
        self._flights: dict[K, Flight[K, V]] = {}
        self._all: set[Flight[K, V]] = set()

    def __len__(self) -> int:
        """Number of runs that have not ended, including those being cancelled."""
        return len(self._all)

    def join(self, key: K, work: Callable[[], Awaitable[V]]) -> Flight[K, V]:
        """Join the run for ``key``, started now if there is none. Balanced by one ``leave``.

        Raises:
            Draining: the owner's group takes no new tasks.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight(key)
            run = self._run(flight, work)
            try:
                flight.task = self._group.create_task(run)
            except RuntimeError as error:  # the group is ending, and a flight without a task would never resolve
                run.close()
                raise Draining("the owner of the work is closing", stage="flow") from error
            flight.task.add_done_callback(lambda task: self._finish(flight, task))
            self._flights[key] = flight
            self._all.add(flight)
        flight.interest += 1
        return flight

    def leave(self, flight: Flight[K, V]) -> bool:
        """Leave a run. True: the caller was the last, and the unfinished run is now being cancelled."""
        assert flight.interest > 0, "left more often than joined"
        flight.interest -= 1
        if flight.interest or flight.result.done() or flight.task is None or flight.task.done():
            return False
        self._forget(flight)  # later callers get a new run, not the one being cancelled
        flight.task.cancel()
        return True

    async def do(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """Return the result of the run for ``key``.

        Raises:
            Draining: the owner cancelled all runs.
            Whatever ``work`` raises.
        """
        flight = self.join(key, work)
        try:
            # Unlike awaiting the future, this leaves it alone if the caller is cancelled.
            await asyncio.wait((flight.result,))
            return flight.result.result()
        finally:
            self.leave(flight)

    async def cancel_all(self) -> None:
        """Cancel every run and return when all have ended; waiting callers get ``Draining``."""
        flights = tuple(self._all)
        for flight in flights:
            if flight.task is not None:
                flight.task.cancel()
        if flights:
            await asyncio.wait([flight.result for flight in flights])

    async def _run(self, flight: Flight[K, V], work: Callable[[], Awaitable[V]]) -> V | None:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - not swallowed: _finish passes it to all callers
            flight.error = error  # raised here, it would end the whole TaskGroup
            return None

    def _finish(self, flight: Flight[K, V], task: asyncio.Task[V | None]) -> None:
        self._forget(flight)
        self._all.discard(flight)
        error: BaseException | None = flight.error
        if task.cancelled():
            error = Draining("the owner of the work is closing", stage="flow")
        elif error is None:
            error = task.exception()
        try:
            if self._ended is not None:
                self._ended(flight.key, error)
        finally:
            if error is None:
                flight.result.set_result(task.result())  # type: ignore[arg-type]  # None only together with an error
            else:
                flight.result.set_exception(error)
                flight.result.exception()  # marked as retrieved, because no caller may be left

    def _forget(self, flight: Flight[K, V]) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
