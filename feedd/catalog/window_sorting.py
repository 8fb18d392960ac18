"""Sorts shuffle windows in threads, each once, and sorts following windows while others are read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from feedd.errors import Draining
from feedd.flow.singleflight import SingleFlight
from feedd.flow.tasks import INLINE_BYTES, off_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from feedd.ordering.sorted_windows import NeedOrder, WindowName, WindowRows

    _Found = Mapping[WindowName, WindowRows]


class Sorting:
    """Sorts the windows that readers need, now or next."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._flights: SingleFlight[Hashable, _Found] = SingleFlight(group)

    async def sort(self, need: NeedOrder) -> None:
        """Sort; afterwards the reader can continue."""
        if need.size_bytes <= INLINE_BYTES:
            need.learn(need.sort())
        else:
            need.learn(await self._flights.do(need.key, _work(need)))

    def begin(self, need: NeedOrder) -> None:
        """Sort in the background, unless the window is small: it then takes less time than starting a thread."""
        if need.size_bytes <= INLINE_BYTES:
            return
        with contextlib.suppress(Draining):
            flight = self._flights.join(need.key, _work(need))

            def ended(result: asyncio.Future[_Found]) -> None:
                self._flights.leave(flight)
                if result.exception() is None:  # after an error, the reader that needs the window tries again
                    need.learn(result.result())

            flight.result.add_done_callback(ended)

    async def close(self) -> None:
        """End all running work."""
        await self._flights.cancel_all()


def _work(need: NeedOrder) -> Callable[[], Awaitable[_Found]]:
    return lambda: off_loop(need.sort, need.size_bytes)
