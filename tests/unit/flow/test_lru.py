"""The bounded map and the task runner."""

from __future__ import annotations

import asyncio

import pytest

from feedd.flow.lru import WeightedLru
from feedd.flow.tasks import run_all


def test_least_recently_used_leaves_first() -> None:
    """Over the limit, what was not used for longest leaves; replaced values count once."""
    lru: WeightedLru[str, int] = WeightedLru(10)
    lru.put("a", 1, 4)
    lru.put("b", 2, 4)
    assert lru.get("a") == 1
    lru.put("c", 3, 4)
    assert (lru.get("b"), lru.get("a"), lru.get("c"), lru.weight) == (None, 1, 3, 8)
    lru.put("a", 9, 2)
    assert (lru.get("a"), lru.weight, len(lru)) == (9, 6, 2)
    lru.put("huge", 0, 99)
    assert (lru.get("huge"), len(lru)) == (0, 1)
    lru.pop("huge")
    assert lru.weight == 0


async def test_first_error_is_raised_as_it_is() -> None:
    """One failing call cancels the others, and its own error comes out."""
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await run_all([waits(), fails()])
    assert cancelled.is_set()


async def test_results_keep_order() -> None:
    """Results come in the order of the calls."""

    async def value(number: int) -> int:
        await asyncio.sleep(0.001 * (3 - number))
        return number

    assert await run_all(value(number) for number in range(3)) == [0, 1, 2]
