"""What the cache does to its directory, in which order, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import math
import os
import shutil
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.cache import inspection as inspect
from feedd.cache import recovery as boot
from feedd.cache.cache import Cache
from feedd.cache.directory import DirectoryStorage, DiskThread, Spares
from feedd.cache.lock import DirectoryLock
from feedd.cache.options import CacheOptions
from feedd.cache.recovery import RunLedger
from feedd.cache.storage import Depth
from feedd.clock import SystemClock
from feedd.errors import CacheTooSmall, CacheUnavailable
from feedd.flow.range_sinks import FileSink
from feedd.metrics import CACHE_ERRORS, CACHE_EVICTIONS, CACHE_HITS, CACHE_MISSES
from tests.budget import PATIENT_S
from tests.fakes.caches import PAGE, SLOT_BYTES, CacheRig
from tests.fakes.fetchers import ROOT, until
from tests.fakes.next_uses import note_next_use
from tests.fakes.nobody import as_nobody

if TYPE_CHECKING:
    from feedd.cache.storage import Finding
    from feedd.values import ObjectRef


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache over objects in memory."""
    return CacheRig(tmp_path / "some" / "where" / "cache")


async def fill(rig: CacheRig, count: int) -> None:
    """Leave a directory with ``count`` whole entries behind."""
    refs = rig.shards(count)
    async with rig.open() as cache:
        for ref in refs:
            with await cache.acquire([ref]):
                pass


async def test_only_the_owner_may_look(rig: CacheRig) -> None:
    """Folders are 0700 and files 0600, parents are made, and nothing but the cache's own is in there."""
    await fill(rig, 2)
    assert stat.S_IMODE(rig.directory.stat().st_mode) == 0o700
    for path in rig.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert {path.name for path in rig.directory.iterdir()} == {"lock", "flushed", "index", "v2"}


async def test_files_are_fully_allocated(rig: CacheRig) -> None:
    """No file has holes: a hole of a mapped file on a full disk would be SIGBUS."""
    await fill(rig, 3)
    for path in rig.entry_files():
        status = path.stat()
        assert status.st_size == SLOT_BYTES
        assert status.st_blocks * 512 >= status.st_size


@pytest.mark.parametrize("listed", [True, False])
async def test_broken_entries_are_misses_and_removed(rig: CacheRig, listed: bool) -> None:
    """Torn headers, short and long files, swapped names and leftovers are never served; whole ones stay."""
    await fill(rig, 6)
    flipped, short, longer, swapped, zeroed, whole = rig.entry_files()
    with flipped.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    os.truncate(short, SLOT_BYTES - 1)
    os.truncate(longer, SLOT_BYTES + 1)
    os.truncate(zeroed, 0)
    shutil.copy(whole, swapped)
    (whole.parent / f".tmp-{'0' * 32}").write_bytes(b"half")
    if not listed:
        (rig.directory / "index").unlink()
    async with rig.open() as cache:
        assert not rig.temp_files()
        refs = rig.shards(6)
        if not listed:
            await until(lambda: rig.recorder.total(CACHE_ERRORS, reason="broken") == 6)
            assert rig.entry_files() == [whole]
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert rig.recorder.total(CACHE_ERRORS) == 6
    assert rig.fetcher.calls.total() == 6 + 5


async def test_foreign_files_are_left_alone(rig: CacheRig) -> None:
    """Whatever is not named as only the cache names things stays, and does not disturb."""
    await fill(rig, 1)
    (entry,) = rig.entry_files()
    top = rig.directory / "v2"
    outside = rig.directory.parent / "outside.shard"
    outside.write_bytes(b"precious")
    foreign = [rig.directory / "notes.txt", top / "README", entry.parent / "x.shard", entry.parent / ".tmp-mine"]
    for path in foreign:
        path.write_bytes(b"mine")
    for folder in (rig.directory / "v0" / "ab", top / "lost+found", entry.parent / f"{'a' * 64}.shard"):
        folder.mkdir(parents=True)
        foreign.append(folder)
    link = entry.parent / f"{'b' * 64}.shard"
    link.symlink_to(outside)
    pipe = entry.parent / f"{'c' * 64}.shard"
    os.mkfifo(pipe)
    async with rig.open() as cache:
        assert cache.stats.entry_count == 1
    assert all(path.exists() for path in foreign)
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("listed", [True, False])
async def test_smaller_limit_evicts_the_oldest_at_start(rig: CacheRig, listed: bool) -> None:
    """Entries beyond a limit that was lowered go at start, least recently used (or, unlisted, written) first."""
    refs = rig.shards(5)
    async with rig.open() as cache:
        for ref in refs:
            with await cache.acquire([ref]):
                pass
    if not listed:
        (rig.directory / "index").unlink()
        for age, ref in enumerate(reversed(refs)):
            path = entry_layout.file_path(rig.directory, ref)
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
    async with rig.open(capacity=2) as cache:
        await until(lambda: {entry.url for entry in cache.entries()} == {ref.url for ref in refs[3:]})
        assert rig.recorder.total(CACHE_EVICTIONS) == 3
        with await cache.acquire([refs[0]]):  # and the older one of those goes first later
            assert {entry.url for entry in cache.entries()} == {refs[0].url, refs[4].url}


async def test_refused_owner_does_not_hurt_the_first(rig: CacheRig) -> None:
    """A refused second opening neither releases the first one's lock nor touches its files."""
    async with rig.open() as cache:
        (ref,) = rig.shards(1)
        with await cache.acquire([ref]) as pins:
            for _ in range(2):
                with pytest.raises(CacheUnavailable):
                    async with rig.open():
                        pass
            rig.check(pins, [ref])
        with (rig.directory / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("where", ["cache", "parent", "format"])
async def test_file_in_the_way(tmp_path: Path, where: str) -> None:
    """A file where a folder should be is named, with what to do about it; no thread is left behind."""
    directory = tmp_path / "parent" / "cache"
    blocker = {"cache": directory, "parent": directory.parent, "format": directory / "v2"}[where]
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("I was here first")
    rig = CacheRig(directory)
    (ref,) = rig.shards(1)
    with pytest.raises(CacheUnavailable, match="in the way") as caught:
        async with rig.open() as cache:
            await cache.acquire([ref])
    assert str(directory) in caught.value.object
    assert blocker.read_text() == "I was here first"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feedd-pool-cache-changes")]


async def test_directory_of_somebody_else(short_dir: Path) -> None:
    """A directory we may not write is an error that says so."""
    os.chmod(short_dir, 0o555)  # noqa: PTH101 - Path.chmod is linted as blocking here
    try:
        with as_nobody(), pytest.raises(CacheUnavailable, match="permission denied"):
            async with CacheRig(short_dir / "cache").open():
                pass
    finally:
        os.chmod(short_dir, 0o700)  # noqa: PTH101 - see above


async def test_no_room_for_any_cache(rig: CacheRig) -> None:
    """A free-space reserve that the disk cannot grant is an error at start, with the numbers."""
    options = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=1 << 60)
    with pytest.raises(CacheUnavailable, match=r"and a reserve of .* need more disk space than the .* free"):
        async with Cache(options, rig.fetcher, rig.recorder, SystemClock()):
            pass


async def test_vanished_files_are_fetched_again(rig: CacheRig) -> None:
    """Entries removed or cut short behind our back are misses, refetched into the same space, and counted."""
    refs = rig.shards(3)
    async with rig.open(capacity=3) as cache:
        with await cache.acquire(refs) as pins:
            first, second, _ = (Path(file.path) for file in pins.files)
        rig.clock.now_s += 2
        first.unlink()
        os.truncate(second, PAGE)
        with await cache.acquire(refs) as pins, await cache.acquire(refs[:1]) as more:
            rig.check(pins, refs)
            rig.check(more, refs[:1])
        assert rig.recorder.total(CACHE_ERRORS, reason="vanished") == 2
        assert (rig.recorder.total(CACHE_HITS), rig.recorder.total(CACHE_MISSES)) == (2, 5)
        rig.clock.now_s += 2
        shutil.rmtree(rig.directory)
        with await cache.acquire(refs[:2]) as pins:
            rig.check(pins, refs[:2])
        assert stat.S_IMODE(rig.directory.stat().st_mode) == 0o700
    assert rig.fetcher.calls.total() == 3 + 2 + 2


async def test_file_seen_a_moment_ago_is_not_looked_at_again(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acquiring a shard again and again does not go to the disk each time, but does so once in a while."""
    (ref,) = rig.shards(1)
    looks: list[Depth] = []
    async with rig.open() as cache:
        real = cache._disk._storage.look

        async def counted(refs: list[ObjectRef], depth: Depth) -> list[Finding]:
            looks.append(depth)
            return await real(refs, depth)

        monkeypatch.setattr(cache._disk._storage, "look", counted)
        for step_s in (0.0, 0.5, 0.25, 2.0, 0.5, 2.0):
            rig.clock.now_s += step_s
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
    assert looks == [Depth.LENGTH, Depth.LENGTH]


async def test_a_damaged_file_has_the_others_looked_at(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that go away seldom go alone; one that is only to come anew says nothing about others."""
    damaged, other = rig.shards(2)
    async with rig.open() as cache:
        with await cache.acquire([damaged, other]):
            pass
        looks: list[ObjectRef] = []
        real = cache._disk._storage.look

        async def noted(refs: list[ObjectRef], depth: Depth) -> list[Finding]:
            looks.extend(refs)
            return await real(refs, depth)

        monkeypatch.setattr(cache._disk._storage, "look", noted)
        for drop, expected in ((cache.renew, []), (cache.discard, [other])):
            await drop(damaged)
            with await cache.acquire([other]) as pins:
                rig.check(pins, [other])
            assert looks == expected


async def test_entries_of_another_boot_need_a_flush(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the machine went down, only what a clean close has flushed is believed; the rest is a miss."""
    refs = rig.shards(4)

    def next_boot(number: int) -> None:
        monkeypatch.setattr("feedd.cache.recovery.boot_id", lambda: bytes([number]) * 16)

    next_boot(1)
    async with rig.open() as cache:
        with await cache.acquire(refs[:2]):
            pass
    monkeypatch.setattr(RunLedger, "flush", lambda *_: None)  # as if the power had been cut before the next close
    async with rig.open() as cache:
        with await cache.acquire(refs):
            pass
    monkeypatch.undo()
    next_boot(1)
    assert len(list(inspect.scan(rig.directory))) == 4
    next_boot(2)
    assert len(list(inspect.scan(rig.directory))) == 2
    async with rig.open() as cache:
        assert {entry.url for entry in cache.entries()} == {ref.url for ref in refs[:2]}
    next_boot(3)
    async with rig.open() as cache:
        assert cache.stats.entry_count == 2  # flushed by the boot before last, still on the list


async def test_the_next_owner_does_not_wait_for_a_flush(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk delays the end of an owner, and not the start of the next one; both runs are listed as flushed."""
    monkeypatch.setattr("feedd.cache.recovery.boot_id", lambda: b"a" * 16)
    flushing, goes_on = threading.Event(), threading.Event()
    real = boot.sync_file_system

    def slow(fd: int) -> None:
        flushing.set()
        assert goes_on.wait(PATIENT_S)
        real(fd)

    refs = rig.shards(4)
    first = rig.made(rig.options())
    async with first:
        with await first.acquire(refs[:2]):
            pass
        monkeypatch.setattr(boot, "sync_file_system", slow)
        closing = asyncio.ensure_future(first.close())
        await until(flushing.is_set)
        monkeypatch.setattr(boot, "sync_file_system", real)
        async with rig.made(rig.options()) as second:
            assert second.stats.entry_count == 2
            with await second.acquire(refs):
                pass
            assert not closing.done()
            goes_on.set()
            await closing
    monkeypatch.setattr("feedd.cache.recovery.boot_id", lambda: b"b" * 16)
    async with rig.open() as cache:
        assert {entry.url for entry in cache.entries()} == {ref.url for ref in refs}


def test_unreadable_list_of_flushed_runs_means_nothing_is_believed(tmp_path: Path) -> None:
    """A damaged list costs refetches, never wrong bytes."""
    (tmp_path / "flushed").write_bytes(b"\xffnot hex")
    header = entry_layout.Header(CacheRig(tmp_path).shard("a"), PAGE, boot=b"x" * 16, run=b"y" * 16, sums=bytes(4))
    assert not RunLedger(tmp_path, boot=b"z" * 16).believes(header)
    assert RunLedger(tmp_path, boot=b"x" * 16).believes(header)


async def test_listing_and_removing_without_a_daemon(rig: CacheRig) -> None:
    """``scan`` lists what the next start would find and changes nothing; ``remove`` takes out what is asked."""
    await fill(rig, 3)
    (leftover := rig.entry_files()[0].parent / f".tmp-{'1' * 32}").write_bytes(b"half")
    os.truncate(rig.entry_files()[0], 10)
    listed = sorted(inspect.scan(rig.directory), key=repr)
    assert len(listed) == 2
    assert {(entry.etag, entry.size_bytes, entry.pins) for entry in listed} == {("v1", 4 * PAGE, 0)}
    assert len(rig.entry_files()) == 3
    assert leftover.exists()
    assert inspect.remove(rig.directory, lambda entry: entry.url == listed[0].url) == listed[:1]
    assert list(inspect.scan(rig.directory)) == listed[1:]


def test_listing_what_is_not_there(tmp_path: Path) -> None:
    """A directory that does not exist has no entries and is not made."""
    assert list(inspect.scan(tmp_path / "none")) == []
    assert inspect.remove(tmp_path / "none", lambda _: True) == []
    assert not (tmp_path / "none").exists()


async def test_listing_beside_a_running_cache(rig: CacheRig) -> None:
    """``scan`` needs no ownership and passes over fills under way."""
    refs = rig.shards(2)
    async with rig.open() as cache:
        with await cache.acquire(refs):
            assert {entry.url for entry in inspect.scan(rig.directory)} == {ref.url for ref in refs}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size_bytes", 0),
        ("free_reserve_bytes", -1),
        ("fill_deadline_s", 0.0),
        ("verify", "maybe"),
        ("verified_for_s", -1.0),
    ],
)
def test_impossible_options(name: str, value: object) -> None:
    """Options that cannot be meant are refused where they are made."""
    arguments: dict[str, object] = {"directory": Path("/cache"), "size_bytes": 1, name: value}
    with pytest.raises(ValueError, match=name):
        CacheOptions(**arguments)  # type: ignore[arg-type]  # one wrong value at a time


async def test_scan_holds_at_most_the_limit(rig: CacheRig) -> None:
    """Opening never enters more than the limit, whatever the sizes on disk."""
    refs = [rig.shard(f"s{size}", size * PAGE) for size in range(1, 8)]
    async with rig.open() as cache:
        with await cache.acquire(refs):
            pass
    options = rig.options(capacity=3)
    lock = DirectoryLock(rig.directory)
    taken = boot.open_directory(options, lock)
    taken.journal.close()
    lock.__exit__()
    opened = taken.opened
    assert opened.index.committed_bytes <= options.size_bytes
    assert opened.evicted_count == 7 - opened.index.committed_count > 0
    assert all(math.isinf(entry.next_use) and not entry.pins for entry in opened.index)


async def test_a_large_entry_that_has_arrived_is_published_at_once(
    rig: CacheRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until the files of all entries that were asked for with it are allocated."""
    done: list[str] = []

    def noted(name: str) -> None:
        work = getattr(DirectoryStorage, name)

        def run(self: DirectoryStorage, *arguments: object, **named: object) -> object:
            done.append(name)
            return work(self, *arguments, **named)

        monkeypatch.setattr(DirectoryStorage, name, run)

    noted("_create")
    noted("_publish")
    monkeypatch.setattr("feedd.cache.fills._LARGE_BYTES", 1)
    refs = rig.shards(12)
    async with rig.open() as cache:
        with await cache.acquire(refs) as pins:
            rig.check(pins, refs)
    assert sorted(done) == ["_create"] * 12 + ["_publish"] * 12
    assert "_publish" in done[:11]


TRAIN = f"{ROOT}/train/"


def cache_of(rig: CacheRig, slots: int) -> Cache:
    """Return a cache in which the dataset may take so many shards."""
    options = replace(rig.options(), quotas={TRAIN: slots * SLOT_BYTES})
    return Cache(options, rig.fetcher, rig.recorder, rig.clock)


def held(cache: Cache) -> set[str]:
    """Return the names of what is in it."""
    return {entry.url.removeprefix(f"{ROOT}/") for entry in cache.entries()}


async def test_quota_holds_and_survives_a_restart(tmp_path: Path) -> None:
    """A dataset replaces its own shards only; a smaller quota after a restart removes its oldest, and no others."""
    rig = CacheRig(tmp_path / "cache")
    train = [rig.shard(f"train/{n}") for n in range(5)]
    other = [rig.shard(f"other/{n}") for n in range(3)]
    async with cache_of(rig, 3) as cache:
        for ref in (*other, *train):
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
        assert held(cache) == {"other/0", "other/1", "other/2", "train/2", "train/3", "train/4"}
    async with cache_of(rig, 3) as cache:
        assert held(cache) == {"other/0", "other/1", "other/2", "train/2", "train/3", "train/4"}
    async with cache_of(rig, 1) as cache:
        assert len(held(cache) & {"train/2", "train/3", "train/4"}) <= 1
        assert held(cache) >= {"other/0", "other/1", "other/2"}
        assert cache.stats.committed_bytes <= 4 * SLOT_BYTES
        with await cache.acquire([train[0]]) as pins:
            rig.check(pins, [train[0]])
        assert held(cache) == {"other/0", "other/1", "other/2", "train/0"}


async def test_larger_than_the_quota_names_it(tmp_path: Path) -> None:
    """What a quota can never hold is refused at once with the option to raise; what may fit later waits."""
    rig = CacheRig(tmp_path / "cache")
    a, b, c = [rig.shard(f"train/{n}") for n in range(3)]
    async with cache_of(rig, 2) as cache:
        with pytest.raises(CacheTooSmall, match=f'quota of {TRAIN}.*raise cache.quotas."{TRAIN}"'):
            await cache.acquire([a, b, c])
        with await cache.acquire([a, b]):
            waiting = asyncio.ensure_future(cache.acquire([c]))
            await until(lambda: cache.stats.waiting_count == 1)
        with await waiting as pins:
            rig.check(pins, [c])


async def test_one_dataset_at_its_quota_does_not_hold_up_others(tmp_path: Path) -> None:
    """Who waits for space inside a quota is overtaken by those who need none of it."""
    rig = CacheRig(tmp_path / "cache")
    a, b = [rig.shard(f"train/{n}") for n in range(2)]
    other = rig.shard("other")
    async with cache_of(rig, 1) as cache:
        with await cache.acquire([a]):
            waiting = asyncio.ensure_future(cache.acquire([b]))
            await until(lambda: cache.stats.waiting_count == 1)
            async with asyncio.timeout(PATIENT_S):
                with await cache.acquire([other]) as pins:
                    rig.check(pins, [other])
            assert not waiting.done()
        with await waiting as pins:
            rig.check(pins, [b])


def evicted(folder: Path, *pages: int) -> Spares:
    """Return spares of these sizes."""
    spares = Spares()
    paths = [folder / f"{number:064x}.shard" for number in range(len(pages))]
    for path, count in zip(paths, pages, strict=True):
        path.write_bytes(b"old!" * (count * PAGE // 4))
    spares.retire(paths)
    return spares


def taken_bytes(folder: Path) -> int:
    """What all files take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.parametrize("size_bytes", [1, PAGE, 3 * PAGE - 1, 3 * PAGE, 5 * PAGE, 6 * PAGE, 9 * PAGE + 1])
def test_a_spare_becomes_a_file_of_any_size(tmp_path: Path, size_bytes: int) -> None:
    """The new file is allocated to its last byte, and takes no more than eviction set free."""
    spares = evicted(tmp_path, 3, 5, 2)
    file = spares.take(new := entry_layout.temp_path(tmp_path / "x"), size_bytes, 0)
    assert file is not None
    assert size_bytes == new.stat().st_size
    FileSink(file, 0, size_bytes).write_now(0, memoryview(b"n" * size_bytes))
    file.close()
    assert new.stat().st_blocks * 512 >= size_bytes
    assert new.read_bytes() == b"n" * size_bytes
    assert taken_bytes(tmp_path) <= 10 * PAGE
    spares.drop()
    assert list(tmp_path.iterdir()) == [new]
    assert spares.take(new, PAGE, 0) is None


def test_the_one_of_the_same_size_is_taken_first(tmp_path: Path) -> None:
    """Where a spare has just as many pages, nothing is allocated or freed."""
    spares = evicted(tmp_path, 3, 5, 2)
    inodes = {path.stat().st_ino: path.stat().st_size for path in tmp_path.iterdir()}
    file = spares.take(new := entry_layout.temp_path(tmp_path / "x"), 5 * PAGE - 7, 0)
    assert file is not None
    file.close()
    assert inodes[new.stat().st_ino] == 5 * PAGE
    spares.drop()


def test_a_file_somebody_reads_is_not_written_over(tmp_path: Path) -> None:
    """What is open anywhere when it is evicted is unlinked: its reader finishes with what it began with."""
    path = tmp_path / f"{7:064x}.shard"
    path.write_bytes(b"old!" * PAGE)
    spares = Spares()
    with path.open("rb") as reader:
        spares.retire([path])
        assert list(tmp_path.iterdir()) == []
        assert spares.take(tmp_path / "new", PAGE, 0) is None
        assert reader.read() == b"old!" * PAGE
    spares.retire([path])  # gone already: nothing to do


def test_no_spare_grows_into_the_reserve(tmp_path: Path) -> None:
    """A spare that would need more than may be taken is given up."""
    spares = evicted(tmp_path, 1)
    assert spares.take(tmp_path / "new", 4 * PAGE, 1 << 60) is None
    assert list(tmp_path.iterdir()) == []


async def test_eviction_hands_its_pages_to_the_fill_it_made_room_for(tmp_path: Path) -> None:
    """A full cache goes on with the files it has; what no fill took is unlinked."""
    rig = CacheRig(tmp_path / "cache")
    refs = rig.shards(6)
    async with rig.open(capacity=2) as cache:
        with await cache.acquire(refs[:2]):
            inodes = {path.stat().st_ino for path in rig.entry_files()}
        for ref in refs[2:]:
            with await cache.acquire([ref]) as pins:
                rig.check(pins, [ref])
                assert os.stat(pins.files[0].path).st_ino in inodes  # noqa: PTH116 - one look at a local file
        rig.fetcher.hold(refs[0])
        note_next_use(cache, [(refs[0], 1.0)])
        cache.prefetch([refs[0]], "owner")
        await until(lambda: rig.fetcher.running)
        cache.prefetch([], "owner")
        await until(lambda: not rig.temp_files())
        rig.fetcher.release(refs[0])


async def test_changes_run_in_the_order_handed_over() -> None:
    """A posted removal is done before anything handed over later, whoever waits for which."""
    seen: list[int] = []
    disk = DiskThread(seen.append)  # type: ignore[arg-type]  # nothing fails here
    go = threading.Event()
    disk.post(go.wait, 20)
    for number in range(5):
        disk.post(seen.append, number)
    last = asyncio.ensure_future(disk.change(seen.append, 5))
    await asyncio.sleep(0)
    go.set()
    await last
    assert seen == [0, 1, 2, 3, 4, 5]
    await disk.close(20.0)


async def test_cancelled_wait_does_not_cancel_the_job() -> None:
    """A job handed over runs although nobody waits for it any more: what follows it can rely on it."""
    seen: list[str] = []
    disk = DiskThread(lambda error: seen.append(str(error)))
    go = threading.Event()
    disk.post(go.wait, 20)
    waiting = asyncio.ensure_future(disk.change(seen.append, "done"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go.set()
    await disk.change(lambda: None)
    assert seen == ["done"]
    await disk.close(20.0)


async def test_the_error_of_an_abandoned_job_is_no_defect() -> None:
    """The error of a job whose caller was cancelled is not logged as an exception that nothing retrieved."""
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    disk = DiskThread(found.append)
    for begin in (disk.change, disk.look):
        go = threading.Event()

        def fail(go: threading.Event = go) -> None:
            go.wait(PATIENT_S)
            raise OSError("the disk is gone")

        waiting = asyncio.ensure_future(begin(fail))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        go.set()
    await disk.close(PATIENT_S)
    gc.collect()
    assert found == []


async def test_looking_does_not_wait_for_changes() -> None:
    """A slow change does not hold up a look."""
    disk = DiskThread(lambda _: None)
    go = threading.Event()
    slow = asyncio.ensure_future(disk.change(go.wait, 20))
    assert await disk.look(lambda: "seen") == "seen"
    assert not slow.done()
    go.set()
    await slow
    await disk.close(20.0)


async def test_failures_are_reported_or_raised() -> None:
    """A failed job raises where it is awaited and is reported where it is not."""
    errors: list[BaseException] = []
    disk = DiskThread(errors.append)
    with pytest.raises(ZeroDivisionError):
        await disk.change(lambda: 1 // 0)
    disk.post(lambda: 1 // 0)
    await disk.change(lambda: None)
    await asyncio.sleep(0)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    await disk.close(20.0)


async def test_close_finishes_what_was_handed_over() -> None:
    """Close returns after all changes, ends the threads, may be repeated; later posts are dropped."""
    seen: list[int] = []
    disk = DiskThread(lambda _: None)
    for number in range(50):
        disk.post(seen.append, number)
    await disk.close(20.0)
    await disk.close(20.0)
    assert seen == list(range(50))
    disk.post(seen.append, 99)
    assert len(seen) == 50
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("feedd-pool-cache-changes", "feedd-pool-cache-looks"))]


async def test_close_does_not_wait_for_a_stuck_disk() -> None:
    """A job that does not end is left behind and reported, instead of holding up the whole shutdown."""
    errors: list[BaseException] = []
    disk = DiskThread(errors.append)
    go = threading.Event()
    disk.post(go.wait, 20)
    await disk.close(0.01)
    assert [type(error) for error in errors] == [TimeoutError]
    go.set()


_ENDS = """
import asyncio, os, sys, time
from feedd.cache.directory import DiskThread
from feedd.cache.watch import Prober

async def main():
    disk, probe = DiskThread(lambda error: None), Prober(lambda: time.sleep(600))
    disk.post(time.sleep, 600)
    assert not await probe.run(0.01)
    await disk.close(0.01)
    probe.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_ends_whose_disk_hangs() -> None:
    """The interpreter does not wait for threads that a disk holds up."""
    done = subprocess.run([sys.executable, "-c", _ENDS], check=False, capture_output=True, text=True, timeout=PATIENT_S)
    assert (done.returncode, done.stderr) == (0, "")
