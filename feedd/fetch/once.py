"""Opens a shared resource once, however many tasks request it at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Once(Generic[T]):
    """Opens on first use and remembers the result.

    The opening caller may fail or be cancelled: it gets the error, and the next caller opens.
    """

    def __init__(self, open_it: Callable[[], Awaitable[T]]) -> None:
        self._open_it = open_it
        self._value: T | None = None
        self._opening: asyncio.Future[None] | None = None

    @property
    def value(self) -> T | None:
        """The opened value, or None."""
        return self._value

    async def get(self) -> T:
        """Return the value, opening it if no other caller has."""
        while self._value is None:
            if self._opening is not None:
                await asyncio.shield(self._opening)  # a cancelled waiter must not cancel the others' future
                continue
            opening = self._opening = asyncio.get_running_loop().create_future()
            try:
                self._value = await self._open_it()
            finally:
                self._opening = None
                opening.set_result(None)
        return self._value
