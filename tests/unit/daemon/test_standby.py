"""A daemon that stands by waits for the owner of the cache directory, and one daemon takes over at a time."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from feedd.cache.lock import DirectoryLock
from feedd.daemon.standby import owner_gone

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 20.0


class Standby:
    """A daemon that stands by: it takes the directory when it may, and keeps it until it is told to end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.owns = asyncio.Event()
        self._ends = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            async with owner_gone(self._directory):
                stack.enter_context(DirectoryLock(self._directory))
            self.owns.set()
            await self._ends.wait()

    async def end(self) -> None:
        """End, as an owner does that releases the directory."""
        self._ends.set()
        await asyncio.wait_for(self._task, WAIT_S)


async def _looked() -> None:
    """Let threads that wait for a lock reach it."""
    await asyncio.sleep(0.05)


async def test_one_of_several_takes_over_at_a_time(tmp_path: Path) -> None:
    """Three wait in line behind an owner; each serves once, and none finds the directory in use."""
    owner = DirectoryLock(tmp_path / "cache")
    with owner:
        waiting = [Standby(tmp_path / "cache") for _ in range(3)]
        await _looked()
        assert not any(one.owns.is_set() for one in waiting)
    while waiting:
        waits = [asyncio.ensure_future(one.owns.wait()) for one in waiting]
        await asyncio.wait(waits, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        await _looked()
        (serving,) = (one for one in waiting if one.owns.is_set())
        waiting.remove(serving)
        for wait in waits:
            wait.cancel()
        await serving.end()


async def test_without_an_owner_there_is_no_wait(tmp_path: Path) -> None:
    """A directory that is missing, empty or released is free."""
    for _ in range(2):
        standby = Standby(tmp_path / "cache")
        await asyncio.wait_for(standby.owns.wait(), WAIT_S)
        await standby.end()
    (tmp_path / "empty").mkdir()
    async with asyncio.timeout(WAIT_S), owner_gone(tmp_path / "empty"):
        pass


async def test_an_owner_that_makes_its_directory_again_is_still_waited_for(tmp_path: Path) -> None:
    """The lock of the removed directory is free, and the owner holds the one in its place."""
    directory = tmp_path / "cache"
    with DirectoryLock(directory) as first:
        standby = Standby(directory)
        await _looked()
        shutil.rmtree(directory)
        with DirectoryLock(directory):
            first.__exit__(None, None, None)
            await _looked()
            assert not standby.owns.is_set()
        await asyncio.wait_for(standby.owns.wait(), WAIT_S)
        await standby.end()
