"""Coroutines of tests in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from feedd.simulation.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")
_START_S = 1000.0


def run_virtually(main: Coroutine[object, object, _T]) -> _T:
    """Run ``main`` in virtual time, and check that it leaves no task behind."""
    loop = VirtualLoop(_START_S)
    try:
        result = loop.run_until_complete(main)
        assert not asyncio.all_tasks(loop), "expected no task to be left"
        return result
    finally:
        loop.close()
