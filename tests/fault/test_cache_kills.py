"""kill -9 before every single file operation of a cache's life: what is whole is kept, the rest is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.cache import files as looking
from feedd.cache.storage import Depth, Finding
from tests.budget import later
from tests.fakes.caches import CacheRig
from tests.fakes.fetchers import MemoryFetcher, until
from tests.fakes.sinks import write_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

OPERATIONS = (
    "open close mkdir unlink rename posix_fallocate ftruncate truncate write pwrite fsync scandir".split()  # noqa: SIM905 - readable
)
ENOUGH = 10_000  # steps: more than any life has
_THREADS = tuple(f"feedd-pool-cache-{name}" for name in ("changes", "looks", "probe"))


class Fuse:
    """Kills its own process before the step with its number."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.count = 0

    def step(self) -> None:
        """One step more."""
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, name: str) -> None:
        """Count calls of a function of ``os`` from the cache's threads."""
        real: Callable[..., object] = getattr(os, name)

        def counted(*args: object, **kwargs: object) -> object:
            if threading.current_thread().name.startswith(_THREADS):
                self.step()
            return real(*args, **kwargs)

        setattr(os, name, counted)


class FusedFetcher(MemoryFetcher):
    """Steps in the middle of the bytes, too."""

    fuse = Fuse(0)

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        data = self.data(ref)
        write_to(sink, 0, data[: len(data) // 2])
        self.fuse.step()
        await super().fetch(ref, sink, watch)


async def life(rig: CacheRig) -> None:
    """Fill, commit, evict, discard, close, start again."""
    a, b, c = rig.shards(3)
    for _ in range(2):
        async with rig.open(capacity=2) as cache:
            for refs in ([a], [a, b], [c]):  # the last one evicts
                with await cache.acquire(refs) as pins:
                    rig.check(pins, refs)
            await cache.discard(c)


def lived(directory: Path, kill_at: int) -> int:
    """Run a life in a child that is killed at that step; return 0, or the number of its steps if it lived on."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            fetcher = FusedFetcher()
            fetcher.fuse = Fuse(kill_at)
            for name in OPERATIONS:
                fetcher.fuse.wrap(name)
            asyncio.run(life(CacheRig(directory, fetcher)))
            os.write(writing, str(fetcher.fuse.count).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        _, status = os.waitpid(child, 0)
        said = os.read(reading, 16)
    finally:
        os.close(reading)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return 0
    assert os.WEXITSTATUS(status) == 0
    return int(said)


async def check(directory: Path) -> None:
    """The next start keeps what is whole, and nothing else."""
    rig = CacheRig(directory)
    refs = rig.shards(3)
    wanted = [(entry_layout.file_path(directory, ref), ref) for ref in refs]
    found = looking.look(wanted, Depth.BLOCKS, lambda _: True)
    whole = {ref.url for ref, finding in zip(refs, found, strict=True) if finding is Finding.WHOLE}
    async with rig.open() as cache:
        await until(lambda: not cache._disk._unindexed.left_bytes)
        assert {entry.url for entry in cache.entries()} == whole
        assert {path.name for path in rig.entry_files()} == {path.name for path, ref in wanted if ref.url in whole}
        assert not rig.temp_files()
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert rig.fetcher.calls.total() == 3 - len(whole)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, later(2), later(3), later(4), later(5)])
def test_case_39_killed_at_every_step(tmp_path: Path, first: int) -> None:
    """Killed before any step (here every fifth), a cache is clean and right to the byte at its next start."""
    steps = lived(tmp_path / "whole", ENOUGH)
    assert steps > 50
    for step in range(first, steps + 1, 5):
        directory = tmp_path / f"killed-{step}"
        if lived(directory, step):
            continue  # threads interleave: this life was a step shorter
        asyncio.run(check(directory))
