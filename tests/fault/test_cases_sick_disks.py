"""FIELD cases 31 to 34 and 45 to 47: a full, sick, hanging or small disk never ends an epoch."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.cache import files
from feedd.config import machine_defaults
from feedd.dataset.assignment import Assignment
from feedd.dataset.listing import Listing
from feedd.errors import CacheUnavailable
from feedd.metrics import CACHE_BYPASSED, CACHE_DISK_STATE, CACHE_ERRORS
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.sessions.prefetch_driver import PrefetchDriver, ReaderGroups
from feedd.units import GIB, MIB
from feedd.values import Cursor, Topology
from tests.fakes.bypass import QUICK, BypassRig, disk_of, memory_of, watch_of
from tests.fakes.caches import SLOT_BYTES, CacheRig, memory_cache, read
from tests.fakes.disks import BadDisk, small_tmpfs
from tests.fakes.feeding import Taken, batches, feeding, take
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.cache.cache import Cache
    from feedd.values import ObjectRef


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with small_tmpfs(tmp_path / "disk", "size=8m") as target:
        yield target


@pytest.fixture
def bad_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[BadDisk]:
    """A disk that is well until told otherwise."""
    with BadDisk().under(monkeypatch) as disk:
        yield disk


def bypassing(directory: Path, disk: BadDisk | None = None, memory_bytes: int = 16 * MIB) -> BypassRig:
    """Return a rig with memory for when the disk cannot be used."""
    rig = BypassRig(directory, bypass_bytes=memory_bytes)
    if disk is not None:
        rig.probe = disk.probe  # type: ignore[method-assign]  # the disk's own answer
    return rig


def state(rig: BypassRig) -> str:
    """Return the state that the gauge shows: exactly one."""
    states = ("normal", "full", "unstable", "down")
    (shown,) = [name for name in states if rig.recorder.total(CACHE_DISK_STATE, state=name)]
    return shown


async def use(rig: BypassRig, cache: Cache, *refs: ObjectRef) -> None:
    """Acquire, compare every byte, release."""
    with await cache.acquire(refs) as pins:
        rig.check(pins, list(refs))


async def test_case_31_disk_full(small_disk: Path) -> None:
    """With the disk full of other things shards come from memory; once there is space they go to disk again."""
    rig = bypassing(small_disk / "cache")
    held, *others = [rig.shard(f"s{index}", MIB) for index in range(5)]
    async with rig.open(capacity=7 * MIB // SLOT_BYTES) as cache:
        with await cache.acquire([held]) as pins:
            hog = small_disk / "hog"
            hog.write_bytes(bytes(files.free_bytes(small_disk) - 4096))
            await use(rig, cache, *others[:2])
            assert state(rig) == "full"
            tries = rig.recorder.total(CACHE_ERRORS, reason="full")
            await use(rig, cache, others[2], held)
            assert rig.recorder.total(CACHE_ERRORS, reason="full") == tries  # a pause: not tried again at once
            assert rig.recorder.total(CACHE_BYPASSED) == 3
            rig.check(pins, [held])
            hog.unlink()
            rig.clock.now_s += QUICK.full_pause_s
            await use(rig, cache, *others)
        assert state(rig) == "normal"
        await use(rig, cache, *others)
        assert memory_of(cache).stats.committed_bytes == 0  # given back
        assert {entry.url for entry in cache.entries()} == {ref.url for ref in (held, *others)}
    calls = [rig.fetcher.calls[ref.key] for ref in (held, *others)]
    assert calls == [1, 2, 2, 2, 1]  # those in memory once more, for the disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
async def test_case_32_the_epoch_goes_on(tmp_path: Path, bad_disk: BadDisk, code: int) -> None:
    """A trainer whose node's disk stops taking writes in the middle of an epoch gets each sample once, and no error."""
    async with feeding(tmp_path, bypass_bytes=16 * MIB) as rig:
        rig.store.numbers(*[4] * 40)
        session = await rig.open()
        first = await take(session, Cursor())
        assert isinstance(first, Taken)
        bad_disk.write_errno = code
        await rig.close(session)  # and what was read ahead for it is not needed
        for ref in session._parts.view.refs:
            await rig.cache.discard(ref)
        again = await rig.open()
        taken = await batches(again)
        assert [n for batch in taken for n in batch.ints()] == [s * 100 + n for s in range(40) for n in range(4)]
        assert rig.recorder.total(CACHE_BYPASSED) > 0
        assert bad_disk.refusals > 0


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EIO], ids=errno.errorcode.get)
async def test_case_32_disk_refuses_writes(tmp_path: Path, bad_disk: BadDisk, code: int) -> None:
    """A quota, a read-only or vanished directory: memory serves, what is there is read, then all heals."""
    rig = bypassing(tmp_path / "cache", bad_disk)
    here, *others = rig.shards(6)
    async with rig.open() as cache:
        await use(rig, cache, here)
        bad_disk.write_errno = code
        for ref in others:
            await use(rig, cache, ref, here)
            rig.clock.now_s += 1.0
        assert rig.recorder.total(CACHE_BYPASSED) == len(others)
        assert state(rig) == ("full" if code == errno.EDQUOT else "unstable")
        refusals = bad_disk.refusals
        await use(rig, cache, *others, here)
        assert bad_disk.refusals == refusals  # it is left alone
        assert rig.fetcher.calls.total() == 6
        bad_disk.write_errno = 0
        rig.clock.now_s += QUICK.full_pause_s
        if code != errno.EDQUOT:
            await until(lambda: state(rig) == "normal")
        await use(rig, cache, *others)
        assert rig.fetcher.calls.total() == 6
        last = rig.shard("last")
        await use(rig, cache, last)
        assert last.url in {entry.url for entry in disk_of(cache).entries()}


async def test_case_33_unreadable_blocks(tmp_path: Path, bad_disk: BadDisk) -> None:
    """Unreadable entries are fetched again; three in a minute stop writing, in time reading, and clean probes heal."""
    rig = bypassing(tmp_path / "cache", bad_disk)
    rig.health = replace(QUICK, down_after_s=100.0)
    refs = rig.shards(3)
    async with rig.open() as cache:
        await use(rig, cache, *refs)
        rig.clock.now_s += 1000.0  # long enough for their bytes to be looked at again
        bad_disk.read_errno = errno.EIO
        await use(rig, cache, *refs)
        assert rig.recorder.total(CACHE_ERRORS, reason="unreadable") == 3
        assert set(rig.fetcher.calls.values()) == {2}
        await until(lambda: state(rig) == "unstable")
        rig.clock.now_s += 100.0
        await until(lambda: state(rig) == "down")
        await use(rig, cache, *refs)
        assert set(rig.fetcher.calls.values()) == {3}  # not from a disk that is down
        assert rig.recorder.total(CACHE_BYPASSED) == 3
        bad_disk.read_errno = 0
        await until(lambda: state(rig) == "normal")
        await use(rig, cache, *refs)
        assert set(rig.fetcher.calls.values()) == {3}


async def test_case_33_one_bad_block_is_no_sick_disk(tmp_path: Path, bad_disk: BadDisk) -> None:
    """Damaged entries on a disk that answers its probes are fetched again, and the disk is used on."""
    rig = bypassing(tmp_path / "cache", bad_disk)
    refs = rig.shards(4)
    async with rig.open() as cache:
        for ref in refs:
            await use(rig, cache, ref)
            await cache.discard(ref)
            await until(lambda: not watch_of(cache)._doubt_count)
        await use(rig, cache, *refs)
        assert state(rig) == "normal"
        assert rig.recorder.total(CACHE_BYPASSED) == 0
        assert set(rig.fetcher.calls.values()) == {2}


async def test_case_34_disk_hangs(tmp_path: Path, bad_disk: BadDisk) -> None:
    """An operation that hangs is given up once the disk answers no probe either; others are served all the while."""
    rig = bypassing(tmp_path / "cache", bad_disk)
    rig.health = replace(QUICK, slow_op_s=0.3)
    here, *others = rig.shards(4)
    async with rig.open() as cache:
        await use(rig, cache, here)
        bad_disk.go.clear()
        hanging = [asyncio.ensure_future(use(rig, cache, ref)) for ref in others]
        await until(bad_disk.stuck.is_set)
        await use(rig, cache, here)
        await asyncio.gather(*hanging)
        assert rig.recorder.total(CACHE_BYPASSED) == 3
        assert state(rig) == "unstable"
        await use(rig, cache, here, *others)
        bad_disk.go.set()
        await until(lambda: state(rig) == "normal")
        await use(rig, cache, here)
        assert rig.fetcher.calls[here.key] == 1


async def test_case_34_slow_store_is_not_the_disk(tmp_path: Path, bad_disk: BadDisk) -> None:
    """A fill that takes long because of the store is waited for: the disk answers its probes."""
    rig = bypassing(tmp_path / "cache", bad_disk)
    rig.health = replace(QUICK, slow_op_s=0.5)  # a probe's bound too: a busy machine answers within it
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open() as cache:
        waiting = asyncio.ensure_future(use(rig, cache, ref))
        await until(lambda: watch_of(cache)._operations)
        (operation,) = watch_of(cache)._operations
        first_due_s = operation.due_s
        await until(lambda: operation.due_s > first_due_s)
        rig.fetcher.release(ref)
        await waiting
        assert state(rig) == "normal"
        assert rig.fetcher.calls[ref.key] == 1


async def test_case_45_tmpfs_full(small_disk: Path) -> None:
    """On a tmpfs smaller than its size, and filled by others too, the cache takes what there is and serves the rest."""
    rig = bypassing(small_disk / "cache", memory_bytes=4 * MIB)
    refs = [rig.shard(f"s{index}", MIB) for index in range(12)]
    async with rig.open(capacity=(1 << 30) // SLOT_BYTES) as cache:
        assert cache.limit_bytes < 8 * MIB
        for ref in refs:
            await use(rig, cache, ref)
        (small_disk / "hog").write_bytes(bytes(files.free_bytes(small_disk)))
        for ref in refs:
            await use(rig, cache, ref)
            assert memory_of(cache).stats.committed_bytes <= 4 * MIB


async def test_case_45_memory_is_not_overdrawn(tmp_path: Path) -> None:
    """Where the control group has no memory left, the tier in memory refuses instead of waking the OOM killer."""
    rig = CacheRig(tmp_path)
    first, second = rig.shards(2)
    left = [1 << 40]
    async with memory_cache(64 * MIB, rig.fetcher, rig.recorder, rig.clock, lambda: left[0]) as cache:
        with await cache.acquire([first]) as pins:
            left[0] = 256 * MIB
            with pytest.raises(CacheUnavailable, match="more memory than"):
                await cache.acquire([second])
            assert read(pins.files[0]) == rig.fetcher.data(first)
        assert cache.stats.reserved_bytes == 0


def test_case_45_defaults_stay_below_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All default budgets of memory together leave room below the control group's limit."""
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{4 * GIB}\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"root / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n")
    monkeypatch.setattr(machine_defaults, "_ROOT", tmp_path)
    monkeypatch.setattr(machine_defaults, "_MOUNTS", mounts)
    assert machine_defaults.is_in_memory(tmp_path / "cache")
    assert not machine_defaults.is_in_memory(tmp_path.parent)
    budgets = [
        machine_defaults.default_cache_bytes(tmp_path / "cache"),
        machine_defaults.default_arena_bytes(),
        machine_defaults.default_bypass_bytes(),
    ]
    assert all(budgets)
    assert sum(budgets) < 0.8 * 4 * GIB


async def test_case_46_dataset_a_little_larger_than_the_cache(tmp_path: Path) -> None:
    """With data of 1.2 times the cache each epoch fetches what does not fit and little more: hits >= 0.8 / 1.2."""
    rig = CacheRig(tmp_path / "cache")
    refs = rig.shards(48)
    listing = Listing.of(refs, 0.0)
    options = ReaderOptions(3, shuffle=True, window_shards=2, batch_size=8, topology=Topology())
    reader = Reader((Assignment(np.arange(48)),), options, listing.counts)
    fetched = []
    async with rig.open(capacity=40) as cache:
        prefetch_driver = PrefetchDriver("reader", listing.as_listed, reader, cache, ReaderGroups())
        for epoch in range(4):
            plan = reader.epoch_map(Cursor(epoch))
            before = rig.fetcher.calls.total()
            for window in range(plan.window_count):
                prefetch_driver.advance(Cursor(epoch), window, window, window)
                wanted = [refs[shard] for shard in plan.shards(window).tolist()]
                with await cache.acquire(wanted) as pins:
                    rig.check(pins, wanted)
                prefetch_driver.finished(window)
            fetched.append(rig.fetcher.calls.total() - before)
        prefetch_driver.close()
        await until(lambda: cache.stats.reserved_bytes == 0)
    assert fetched[0] >= 48
    assert all(count <= 48 * (1 - 0.8 / 1.2) for count in fetched[1:]), fetched


async def test_few_inodes_are_not_used_up_by_empty_folders(tmp_path: Path) -> None:
    """Folders of entries that made way give their inodes to new entries, so the cache keeps its size."""
    with small_tmpfs(tmp_path / "disk", "size=64m,nr_inodes=40") as target:
        rig = bypassing(target / "cache")
        refs = [rig.shard(f"s{index}", 100) for index in range(150)]
        async with rig.open(capacity=1000) as cache:
            counts = []
            for ref in refs:
                await use(rig, cache, ref)
                rig.clock.now_s += QUICK.full_pause_max_s
                counts.append(len(disk_of(cache).entries()))
        assert min(counts[40:]) >= 8, counts


async def test_case_47_inodes_exhausted(tmp_path: Path) -> None:
    """A file system out of inodes is a full one: entries make way, and what still finds no place comes from memory."""
    with small_tmpfs(tmp_path / "disk", "size=64m,nr_inodes=300") as target:
        rig = bypassing(target / "cache")
        refs = [rig.shard(f"s{index}", 100) for index in range(200)]
        async with rig.open(capacity=1000) as cache:
            for start in range(0, 200, 2):
                await use(rig, cache, *refs[start : start + 2])
                rig.clock.now_s += QUICK.full_pause_max_s
            assert rig.recorder.total(CACHE_ERRORS, reason="full") > 0
            assert state(rig) in {"normal", "full"}
            assert 0 < len(disk_of(cache).entries()) < 200
            await use(rig, cache, *refs[:2])
