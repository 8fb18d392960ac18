"""Memory takes the objects of a disk that cannot be used, at the start or later, and gives them back."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache import os_errors
from feedd.cache.health import DiskState
from feedd.cache.lock import DirectoryLock
from feedd.errors import CacheTooSmall, CacheUnavailable
from feedd.metrics import CACHE_BYPASSED, CACHE_BYTES, CACHE_ENTRIES, CACHE_ERRORS
from tests.fakes.bypass import BypassRig, disk_of, memory_of, watch_of
from tests.fakes.caches import SLOT_BYTES
from tests.fakes.disks import BadDisk
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.cache.cache import Cache, Tier
    from feedd.values import ObjectRef

MEMORY_BYTES = 4 * SLOT_BYTES


@pytest.fixture
def rig(tmp_path: Path) -> BypassRig:
    """A directory, and memory for four shards."""
    return BypassRig(tmp_path / "cache", bypass_bytes=MEMORY_BYTES, retry_s=0.01)


@pytest.fixture
def bad_disk(rig: BypassRig, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadDisk]:
    """The disk below the directory, well at first."""
    with BadDisk().under(monkeypatch) as disk:
        rig.probe = disk.probe  # type: ignore[method-assign]  # the disk's own answer
        yield disk


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


async def use(rig: BypassRig, cache: Cache, *refs: ObjectRef) -> None:
    """Acquire together, compare, release."""
    with await cache.acquire(refs) as pins:
        rig.check(pins, list(refs))


async def break_disk(rig: BypassRig, cache: Cache, disk: BadDisk) -> None:
    """Let the disk refuse so many writes that it is only read from then on."""
    disk.write_errno = errno.EROFS
    for number in range(rig.health.errors_max):
        await use(rig, cache, rig.shard(f"refused-{number}"))
    assert watch_of(cache).state is DiskState.UNSTABLE


def held(tier: Tier) -> set[str]:
    """Return the URLs of the objects in a tier."""
    return {entry.url for entry in tier.entries()}


async def test_one_request_is_served_from_both_tiers(rig: BypassRig, bad_disk: BadDisk) -> None:
    """Objects on a disk that takes no writes are read there, the others come from memory, in the order asked for."""
    old, *new = rig.shards(3)
    async with rig.open() as cache:
        await use(rig, cache, old)
        assert cache.has_room(new[0])
        await break_disk(rig, cache, bad_disk)
        assert not cache.has_room(new[0])  # peers are not served from memory
        bypassed = rig.recorder.total(CACHE_BYPASSED)
        await use(rig, cache, new[1], old, new[0], old)
        assert (old.url in held(disk_of(cache)), old.url in held(memory_of(cache))) == (True, False)
        assert {ref.url for ref in new} <= held(memory_of(cache))
        assert rig.recorder.total(CACHE_BYPASSED) == bypassed + 2
        assert rig.recorder.total(CACHE_ENTRIES) == cache.stats.entry_count == len(cache.entries())
        assert rig.recorder.total(CACHE_BYTES) == cache.stats.committed_bytes
        assert all(map(cache.holds, (old, *new)))
        await use(rig, cache, *new)
        assert rig.recorder.total(CACHE_BYPASSED) == bypassed + 2  # they are in memory already
        assert {rig.fetcher.calls[ref.key] for ref in (old, *new)} == {1}


async def test_a_reader_keeps_its_memory_when_the_disk_is_well_again(rig: BypassRig, bad_disk: BadDisk) -> None:
    """An object in memory that is in use is given to others from there; it is dropped after its last reader."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        await break_disk(rig, cache, bad_disk)
        with await cache.acquire([ref]) as pins:
            bad_disk.write_errno = 0
            await until(watch_of(cache).may_fill)
            await use(rig, cache, rig.shard("on-disk"))
            await use(rig, cache, ref)
            rig.check(pins, [ref])
            assert rig.fetcher.calls[ref.key] == 1
        await use(rig, cache, ref)
        assert ref.url in held(disk_of(cache))
        assert not held(memory_of(cache))


async def test_wishes_go_where_they_would_be_acquired(rig: BypassRig, bad_disk: BadDisk) -> None:
    """While the disk takes no writes, wishes are fetched into memory, and each of them once."""
    refs = rig.shards(3)
    async with rig.open() as cache:
        await break_disk(rig, cache, bad_disk)
        rig.fetcher.hold(refs[0])
        cache.prefetch(refs, "owner")
        await until(lambda: rig.fetcher.running)
        acquiring = asyncio.ensure_future(use(rig, cache, *refs))
        cache.prefetch(refs[1:], "owner")  # does not cancel what is awaited
        rig.fetcher.release(refs[0])
        await acquiring
        cache.prefetch([], "owner")
        assert {ref.url for ref in refs} <= held(memory_of(cache))
    assert {rig.fetcher.calls[ref.key] for ref in refs} == {1}


async def test_moving_on_does_not_cancel_fills_of_the_other_tier(rig: BypassRig, bad_disk: BadDisk) -> None:
    """When the next wishes are all for memory, fills under way on the disk go on; without any wish they end."""
    rig.bypass_bytes = 8 * SLOT_BYTES  # a wish evicts nothing
    slow, dropped, later = rig.shards(3)
    rig.fetcher.hold(slow, dropped)
    async with rig.open() as cache:
        cache.prefetch([slow], "owner")
        await until(lambda: rig.fetcher.running)
        await break_disk(rig, cache, bad_disk)
        cache.prefetch([later], "owner")
        await until(lambda: later.url in held(memory_of(cache)))
        rig.fetcher.release(slow)
        await until(lambda: slow.url in held(disk_of(cache)))
        assert not rig.fetcher.cancelled
        cache.prefetch([dropped], "owner")
        await until(lambda: rig.fetcher.running)
        cache.prefetch([], "owner")
        await until(lambda: rig.fetcher.cancelled)
        assert not rig.recorder.total(CACHE_ERRORS, reason="prefetch")  # it was given up, and did not fail


async def test_what_memory_cannot_hold_names_the_disk(rig: BypassRig, bad_disk: BadDisk) -> None:
    """Shards that fit the disk but not the memory fail with the disk's own error, later with its state."""
    on_disk, *refs = rig.shards(6)
    async with rig.open() as cache:
        await use(rig, cache, on_disk)
        bad_disk.write_errno = errno.EROFS
        with pytest.raises(CacheUnavailable, match="read-only file system"):
            await cache.acquire(refs)
        await break_disk(rig, cache, bad_disk)
        with pytest.raises(CacheUnavailable, match="the disk is unstable, and memory cannot hold the objects"):
            await cache.acquire([on_disk, *refs])
        assert cache.stats.pin_count == 0
        bad_disk.write_errno = 0
        await until(watch_of(cache).may_fill)
        with pytest.raises(CacheTooSmall):  # a disk that is well holds only so many objects
            await cache.acquire(rig.shards(200))


async def test_damaged_entries_have_the_disk_probed(rig: BypassRig) -> None:
    """Discarded entries alone are no sick disk, but with probes that fail they are, until probes succeed again."""
    refs = rig.shards(rig.health.errors_max)
    async with rig.open() as cache:
        await use(rig, cache, *refs)
        rig.probe_error = OSError(errno.EIO, "input/output error")
        for ref in refs:
            await cache.discard(ref)
        await until(lambda: watch_of(cache).state is DiskState.UNSTABLE)
        rig.probe_error = None
        await until(lambda: watch_of(cache).state is DiskState.NORMAL)


async def test_disk_entries_survive_a_restart_and_memory_does_not(rig: BypassRig, bad_disk: BadDisk) -> None:
    """After a restart the objects on disk are hits, and those that were in memory are gone."""
    on_disk, in_memory = rig.shards(2)
    async with rig.open() as cache:
        await use(rig, cache, on_disk)
        await break_disk(rig, cache, bad_disk)
        await use(rig, cache, in_memory)
    async with rig.open() as cache:
        assert held(disk_of(cache)) == {on_disk.url}
        assert not held(memory_of(cache))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
async def test_memory_serves_until_the_directory_opens(
    rig: BypassRig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Shards come from memory while the directory fails, whatever is asked; then the disk takes and keeps them."""
    bad = _BadBoot(monkeypatch, code)
    refs = rig.shards(2)
    async with rig.open() as cache:
        disk, watch = disk_of(cache), watch_of(cache)
        assert watch.state is DiskState.DOWN
        cache.prefetch(refs, "job")
        note_next_use(cache, ((ref, 1.0) for ref in refs))
        await use(rig, cache, *refs)
        await cache.renew(refs[1])
        assert (cache.limit_bytes, disk.stats.entry_count, disk.entries()) == (MEMORY_BYTES, 0, [])
        await until(lambda: bad.tries > 2)
        assert watch.state is DiskState.DOWN
        bad.code = 0
        await until(lambda: watch.state is DiskState.NORMAL)
        await use(rig, cache, *refs)
        assert all(map(disk.holds, refs))
        assert not held(memory_of(cache))
        assert [entry.next_use for entry in disk.index] == [1.0, 1.0], "told before the directory opened"
        assert cache.limit_bytes == disk.limit_bytes > MEMORY_BYTES
    async with rig.open() as again:
        assert {entry.url for entry in again.entries()} == {ref.url for ref in refs}


async def test_closing_ends_the_wait(rig: BypassRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is closed before its directory could be opened leaves no task and no lock behind."""
    bad = _BadBoot(monkeypatch, errno.ENOSPC)
    async with rig.open():
        pass
    bad.code = 0
    async with rig.open():
        pass


async def test_a_directory_of_another_owner_is_refused(rig: BypassRig) -> None:
    """Waiting for another process to give its directory up is no way to start: the error names that process."""
    async with rig.open():
        with pytest.raises(CacheUnavailable, match=f"process {os.getpid()}") as caught:
            async with rig.made(rig.options()):
                pass
        assert not os_errors.may_pass(caught.value)
