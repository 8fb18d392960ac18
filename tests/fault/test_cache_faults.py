"""Kills, full disks and sick disks: training goes on, or an error says why not; nothing wrong is ever served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout, files
from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.clock import SystemClock
from feedd.errors import CacheUnavailable, StoreUnavailable
from feedd.metrics import CACHE_ERRORS
from feedd.units import MIB
from tests.budget import PATIENT_S
from tests.fakes.caches import CacheRig
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.range_sink import RangeSink


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache over objects in memory."""
    return CacheRig(tmp_path / "cache")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    target = tmp_path / "disk"
    target.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root, to mount a small tmpfs")
    command = [mount, "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small tmpfs: {done.stderr.strip()}")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def options(directory: Path, size_bytes: int, reserve_bytes: int = 0) -> CacheOptions:
    """Options of a cache on the small disk."""
    return CacheOptions(directory, size_bytes, reserve_bytes, fill_deadline_s=60.0)


async def test_disk_smaller_than_the_configured_size(small_disk: Path) -> None:
    """On a disk smaller than its size the cache takes what there is, evicts, and never runs into SIGBUS."""
    rig = CacheRig(small_disk / "cache")
    refs = [rig.shard(f"s{index}", MIB) for index in range(24)]
    async with Cache(options(rig.directory, 1 << 40, MIB), rig.fetcher, rig.recorder, SystemClock()) as cache:
        assert 6 * MIB < cache.stats.limit_bytes <= 7 * MIB
        for index in range(0, 24, 3):
            with await cache.acquire(refs[index : index + 3]) as pins:
                rig.check(pins, refs[index : index + 3])
            assert files.free_bytes(small_disk) >= MIB


async def test_disk_filled_by_others_evicts_and_goes_on(small_disk: Path) -> None:
    """When somebody else takes the disk's space, entries are evicted to go on with what is left."""
    rig = CacheRig(small_disk / "cache")
    refs = [rig.shard(f"s{index}", MIB) for index in range(6)]
    async with Cache(options(rig.directory, 7 * MIB), rig.fetcher, rig.recorder, SystemClock()) as cache:
        for ref in refs[:5]:
            with await cache.acquire([ref]):
                pass
        (small_disk / "hog").write_bytes(bytes(files.free_bytes(small_disk) - 4096))
        with await cache.acquire([refs[5]]) as pins:
            rig.check(pins, [refs[5]])
        assert rig.recorder.total(CACHE_ERRORS, reason="full") == 1
        assert {entry.url for entry in cache.entries()} == {ref.url for ref in refs[1:]}


async def test_reserve_is_left_to_others(small_disk: Path) -> None:
    """When others have taken the disk's space, entries go before a fill dips into the free-space reserve."""
    rig = CacheRig(small_disk / "cache")
    refs = [rig.shard(f"s{index}", MIB) for index in range(4)]
    settings = options(rig.directory, 5 * MIB, reserve_bytes=2 * MIB)
    async with Cache(settings, rig.fetcher, rig.recorder, SystemClock()) as cache:
        for ref in refs[:3]:
            with await cache.acquire([ref]):
                pass
        (small_disk / "hog").write_bytes(bytes(files.free_bytes(small_disk) - 2 * MIB - MIB // 2))
        with await cache.acquire([refs[3]]) as pins:
            rig.check(pins, [refs[3]])
        assert files.free_bytes(small_disk) >= 2 * MIB
        assert cache.stats.entry_count == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_disk_full_only_at_allocation(rig: CacheRig, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A quota that shows only when space is allocated costs one eviction and one more try, not the acquire."""
    old, new = rig.shards(2)
    real = os.posix_fallocate
    refusals = [code]

    def refuse_once(fd: int, offset: int, length: int) -> None:
        if refusals:
            raise OSError(refusals.pop(), "no room")
        real(fd, offset, length)

    async with rig.open() as cache:
        with await cache.acquire([old]):
            pass
        monkeypatch.setattr(os, "posix_fallocate", refuse_once)
        with await cache.acquire([new]) as pins:
            rig.check(pins, [new])
        assert [entry.url for entry in cache.entries()] == [new.url]
        assert rig.recorder.total(CACHE_ERRORS, reason="full") == 1


async def test_disk_full_with_nothing_to_evict(small_disk: Path) -> None:
    """A disk that is full of other things and of pinned shards is an error with numbers, and later works again."""
    rig = CacheRig(small_disk / "cache")
    held, wanted = rig.shard("held", MIB), rig.shard("wanted", MIB)
    async with Cache(options(rig.directory, 7 * MIB), rig.fetcher, rig.recorder, SystemClock()) as cache:
        with await cache.acquire([held]) as pins:
            hog = small_disk / "hog"
            hog.write_bytes(bytes(files.free_bytes(small_disk) - 4096))
            with pytest.raises(CacheUnavailable, match=r"an entry of 1MiB .* disk space than the 4KiB free"):
                await cache.acquire([wanted])
            assert cache.stats.reserved_bytes == 0
            rig.check(pins, [held])
            assert not rig.temp_files()
            hog.unlink()
            with await cache.acquire([wanted, held]) as both:
                rig.check(both, [wanted, held])


async def test_prefetch_on_a_full_disk_evicts_no_sooner_use(small_disk: Path) -> None:
    """Making room on the disk follows the same rule as making room in the books."""
    rig = CacheRig(small_disk / "cache")
    soon, wish = rig.shard("soon", MIB), rig.shard("wish", MIB)
    async with Cache(options(rig.directory, 7 * MIB), rig.fetcher, rig.recorder, SystemClock()) as cache:
        note_next_use(cache, [(soon, 1.0), (wish, 2.0)])
        with await cache.acquire([soon]):
            pass
        (small_disk / "hog").write_bytes(bytes(files.free_bytes(small_disk) - 4096))
        cache.prefetch([wish], "owner")
        await until(lambda: rig.recorder.total(CACHE_ERRORS, reason="prefetch") == 1)
        assert [entry.url for entry in cache.entries()] == [soon.url]


async def test_read_only_file_system(small_disk: Path) -> None:
    """A file system mounted read-only says so, before and while the cache is open."""
    rig = CacheRig(small_disk / "cache")
    first, second = rig.shards(2)

    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(small_disk)], check=True)

    remount("ro")
    with pytest.raises(CacheUnavailable, match="mounted read-only"):
        async with rig.open():
            pass
    remount("rw")
    rig.directory.mkdir()
    (rig.directory / "lock").touch()
    async with rig.open() as cache:
        with await cache.acquire([first]):
            pass
        shutil.rmtree(rig.directory)
        rig.directory.symlink_to("/proc/self/fdinfo")  # a place where nobody can make folders
        with pytest.raises(CacheUnavailable):
            await cache.acquire([second])
        rig.directory.unlink()
        rig.clock.now_s += 2
        with await cache.acquire([first, second]) as pins:
            rig.check(pins, [first, second])


async def test_store_that_never_ends(rig: CacheRig) -> None:
    """A fetch beyond its deadline is cancelled and is an error that names the object; the next try may succeed."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open(deadline_s=0.05) as cache:
        while not rig.fetcher.calls[ref.key]:  # on a machine that stalls, making the file may take as long
            with pytest.raises(StoreUnavailable, match=f"did not arrive within 50ms .*{ref.key}"):
                await cache.acquire([ref])
        assert rig.fetcher.cancelled[ref.key] == 1
        rig.fetcher.release(ref)
        pins = None
        while pins is None:
            with contextlib.suppress(StoreUnavailable):  # the machine may stall again
                pins = await cache.acquire([ref])
        with pins:
            rig.check(pins, [ref])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EMFILE])
async def test_allocation_refused(rig: CacheRig, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Whatever the system says at allocation is a CacheUnavailable, with no file, mapping or space left behind."""

    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", refuse)
            with pytest.raises(CacheUnavailable) as caught:
                await cache.acquire([ref])
        assert caught.value.hint
        assert caught.value.object
        assert rig.entry_files() == []
        with await cache.acquire([ref]) as pins:
            rig.check(pins, [ref])


async def test_slow_disk_does_not_block_the_loop(
    rig: CacheRig, monkeypatch: pytest.MonkeyPatch, no_blocked_loop: None
) -> None:
    """While the disk hangs in an allocation the loop runs on and other shards are served from the cache."""
    here, missing = rig.shards(2)
    go, stuck = threading.Event(), threading.Event()
    real = os.posix_fallocate

    def hang(fd: int, offset: int, length: int) -> None:
        stuck.set()
        go.wait(PATIENT_S)
        real(fd, offset, length)

    async with rig.open() as cache:
        with await cache.acquire([here]):
            pass
        monkeypatch.setattr(os, "posix_fallocate", hang)
        acquiring = asyncio.ensure_future(cache.acquire([missing]))
        await until(stuck.is_set)
        with await cache.acquire([here]) as pins:
            rig.check(pins, [here])
        assert not acquiring.done()
        acquiring.cancel()
        await asyncio.wait([acquiring])
        go.set()


async def test_fetcher_that_keeps_a_sink_in_its_error(rig: CacheRig) -> None:
    """A failed fetch whose traceback still holds the sink neither breaks the cache nor keeps the space."""
    (ref,) = rig.shards(1)
    kept: list[RangeSink] = []

    class Clinging(type(rig.fetcher)):  # type: ignore[misc]  # the fake with one bad habit more
        async def fetch(self, ref: object, sink: RangeSink, watch: object = None) -> None:
            kept.append(sink.part(5, sink.size_bytes))
            raise StoreUnavailable("expected a body, got a reset")

    async with Cache(rig.options(1), Clinging(), rig.recorder, SystemClock()) as cache:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await cache.acquire([ref])
        assert cache.stats.reserved_bytes == 0
    assert rig.disk_bytes() == 0
    for sink in kept:
        with pytest.raises(CacheUnavailable, match="the file is closed"):
            await sink.write(0, b"x")


def test_created_file_cannot_fault(tmp_path: Path) -> None:
    """A file is allocated to the last byte before anybody maps it."""
    file = files.create(tmp_path / "v1" / "ab" / "file", 10 * entry_layout.PAGE_BYTES + 1, 0)
    status = (tmp_path / "v1" / "ab" / "file").stat()
    assert status.st_blocks * 512 >= status.st_size == 10 * entry_layout.PAGE_BYTES + 1
    file.close()
