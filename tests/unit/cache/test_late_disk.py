"""A disk tier whose directory cannot be used at the start."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from feedd.cache import os_errors
from feedd.cache.caches import DiskCache, MemoryCache
from feedd.cache.disk_watch import DiskWatch
from feedd.cache.late_disk import LateDisk, may_pass
from feedd.cache.ondisk.directory_lock import DirectoryLock
from feedd.cache.policy.health import DiskState
from feedd.cache.tiers import TieredCache
from feedd.errors import CacheUnavailable
from tests.fakes.caches import SLOT_BYTES
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use
from tests.fakes.tiers import QUICK, TieredRig

if TYPE_CHECKING:
    from pathlib import Path

RETRY_S = 0.01
MEMORY_BYTES = 4 * SLOT_BYTES


@pytest.fixture
def rig(tmp_path: Path) -> TieredRig:
    """Memory on standby beside a directory."""
    return TieredRig(tmp_path / "cache", memory_bytes=MEMORY_BYTES, standby=True)


class _BadBoot:
    """Every opening of the directory fails while ``code`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.code = code
        self.tries = 0
        real = DirectoryLock.__enter__

        def enter(lock: DirectoryLock) -> DirectoryLock:
            self.tries += 1
            if self.code:
                error = OSError(self.code, os.strerror(self.code))
                raise os_errors.unavailable(error, lock._directory) from error
            return real(lock)

        monkeypatch.setattr(DirectoryLock, "__enter__", enter)


def _tiers(rig: TieredRig) -> tuple[TieredCache, LateDisk, DiskWatch]:
    watch = DiskWatch(rig.probe, QUICK, rig.recorder, rig.clock)
    disk = LateDisk(partial(DiskCache, rig.options(), rig.fetcher, rig.recorder, rig.clock), watch, RETRY_S)
    memory = MemoryCache(MEMORY_BYTES, rig.fetcher, rig.recorder, rig.clock)
    return TieredCache(memory, disk, watch, rig.recorder, standby=True), disk, watch


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
async def test_memory_serves_until_the_directory_opens(
    rig: TieredRig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Shards come from memory while the directory fails, whatever is asked; then the disk takes and keeps them."""
    bad = _BadBoot(monkeypatch, code)
    refs = rig.shards(2)
    cache, disk, watch = _tiers(rig)
    async with cache:
        assert watch.state is DiskState.DOWN
        cache.prefetch(refs, "job")
        note_next_use(cache, ((ref, 1.0) for ref in refs))
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
        await cache.renew(refs[1])
        assert (cache.limit_bytes, disk.stats.entry_count, disk.entries()) == (MEMORY_BYTES, 0, [])
        await until(lambda: bad.tries > 2)
        assert watch.state is DiskState.DOWN
        bad.code = 0
        await until(lambda: watch.state is DiskState.NORMAL)
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
            assert all(map(disk.holds, refs))
        assert disk._cache is not None
        assert [entry.next_use for entry in disk._cache._index] == [1.0, 1.0], "told before the directory opened"
    async with rig.open_tiers() as again:
        assert {entry.url for entry in again.entries()} == {ref.url for ref in refs}


async def test_closing_ends_the_wait(rig: TieredRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is closed before its directory could be opened leaves no task and no lock behind."""
    bad = _BadBoot(monkeypatch, errno.ENOSPC)
    cache, _, _ = _tiers(rig)
    async with cache:
        pass
    bad.code = 0
    async with rig.open_tiers():
        pass


async def test_a_directory_of_another_owner_is_refused(rig: TieredRig) -> None:
    """Waiting for another process to give its directory up is no way to start: the error names that process."""
    async with rig.open_tiers():
        cache, _, _ = _tiers(rig)
        with pytest.raises(CacheUnavailable, match=f"process {os.getpid()}") as caught:
            async with cache:
                pass
        assert not may_pass(caught.value)
