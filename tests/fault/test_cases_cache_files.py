"""Cases 38 to 45, 48 and 52: old, lost and shared cache files. Never a wrong byte, never a lost epoch."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import inspection as inspect
from feedd.cache.cache import Cache
from feedd.cache.lock import DirectoryLock
from feedd.cache.options import CacheOptions
from feedd.catalog.sources import Sources
from feedd.errors import CacheUnavailable, Draining, StoreUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.metrics import CACHE_ERRORS, CACHE_PINS, CACHE_RESERVED
from feedd.units import MIB
from feedd.values import ShardFile
from tests.budget import PATIENT_S
from tests.fakes.caches import PAGE, SHARD_BYTES, CacheRig, memory_cache, read
from tests.fakes.damage import ROOMY, filled, flip, path_of, served
from tests.fakes.fetchers import until
from tests.fakes.s3.server import S3Server
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock

if TYPE_CHECKING:
    from collections.abc import Iterator


REPOSITORY = Path(__file__).resolve().parents[2]
LARGE_BYTES = 3 * MIB + 777  # four blocks

VICTIM = """
import asyncio, sys
from pathlib import Path
from tests.fakes.caches import CacheRig

async def main(directory, phase):
    rig = CacheRig(directory)
    whole, half = rig.shards(2)
    async with rig.open() as cache:
        with await cache.acquire([whole]):
            pass
        rig.fetcher.hold(half)
        filling = asyncio.ensure_future(cache.acquire([half]))
        while not rig.fetcher.running:
            await asyncio.sleep(0.001)
        if phase == "evicting":
            await cache.discard(whole)
        print("ready", flush=True)
        await filling

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache over objects in memory."""
    return CacheRig(tmp_path / "cache")


async def test_case_38_folders_of_other_versions(rig: CacheRig) -> None:
    """Entries of another format, and foreign files, stay: this version has a folder of its own."""
    ref = rig.shard("shard")
    name = path_of(rig, ref).name
    newer = rig.directory / "v3" / name[:2] / name
    for path in (newer, newer.with_name("notes.txt")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"of another time")
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, [ref])
    assert newer.exists()
    assert newer.with_name("notes.txt").exists()
    assert rig.recorder.total(CACHE_ERRORS, reason="broken") == 0


@pytest.mark.parametrize("phase", ["filling", "evicting"])
async def test_case_39_killed_in_mid_fill(rig: CacheRig, phase: str) -> None:
    """After kill -9 the lock is free, leftovers go, whole entries stay, and the half one is fetched anew."""
    command = [sys.executable, "-c", VICTIM, str(rig.directory), phase]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as victim:  # noqa: ASYNC220 - nothing else runs on this loop
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
            with pytest.raises(CacheUnavailable, match=f"in use by process {victim.pid}"):
                async with rig.open():
                    pass
        finally:
            victim.kill()
        victim.wait(PATIENT_S)
    assert len(rig.temp_files()) == 1
    whole, half = rig.shards(2)
    async with rig.open(ROOMY) as cache:
        assert not rig.temp_files()
        assert {entry.url for entry in cache.entries()} <= {whole.url}
        await served(rig, cache, [whole, half])
    assert rig.fetcher.calls[half.key] == 1
    assert rig.fetcher.calls[whole.key] <= (phase == "evicting")  # its removal may or may not have been under way


@pytest.mark.parametrize("flushed", [True, False])
async def test_case_40_power_loss_after_rename(rig: CacheRig, monkeypatch: pytest.MonkeyPatch, flushed: bool) -> None:
    """After a power cut the start is clean and a file with a zeroed tail is not served, whatever its header says."""
    whole, torn = rig.shard("whole", LARGE_BYTES), rig.shard("torn", LARGE_BYTES)
    await filled(rig, whole, torn)
    if not flushed:
        (rig.directory / "flushed").unlink()
    path = path_of(rig, torn)
    os.truncate(path, PAGE + 2 * MIB)
    os.truncate(path, PAGE + LARGE_BYTES)  # zeros where data was
    (path.parent / f".tmp-{'0' * 32}").write_bytes(b"half")
    monkeypatch.setattr("feedd.cache.recovery.boot_id", lambda: b"the next boot...")
    async with rig.open(ROOMY) as cache:
        assert not rig.temp_files()
        await served(rig, cache, [whole, torn])
    assert (rig.fetcher.calls[whole.key], rig.fetcher.calls[torn.key]) == ((1, 2) if flushed else (2, 2))


@pytest.mark.parametrize("lost", ["gone", "torn", "garbage", "flipped", "of an hour ago", "a folder"])
async def test_case_41_index_lost_or_stale(rig: CacheRig, lost: str) -> None:
    """Without a good list of entries the cache serves from the start, finds its files again, and fetches none twice."""
    refs = rig.shards(8)
    index = rig.directory / "index"
    await filled(rig, *refs[:4])
    stale = index.read_bytes()
    await filled(rig, *refs)
    if lost == "gone":
        index.unlink()
    elif lost == "torn":
        os.truncate(index, index.stat().st_size - 1)
    elif lost == "garbage":
        index.write_bytes(os.urandom(4096))
    elif lost == "flipped":
        flip(index, index.stat().st_size // 2)
    elif lost == "of an hour ago":
        index.write_bytes(stale)
    else:
        index.unlink()
        index.mkdir()
    new = rig.shard("new")
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, [new])
        await until(lambda: cache.stats.entry_count == 9)
        await served(rig, cache, refs)
    assert set(rig.fetcher.calls.values()) == {1}
    assert rig.recorder.total(CACHE_ERRORS) == 0


async def test_case_41_full_cache_without_its_index(rig: CacheRig) -> None:
    """A full cache that lost its list never takes more than its space while it looks through its files."""
    refs = rig.shards(6)
    async with rig.open(capacity=4) as cache:
        await served(rig, cache, refs[:4])
    (rig.directory / "index").unlink()
    async with rig.open(capacity=4) as cache:
        assert cache.limit_bytes == 4 * (SHARD_BYTES + PAGE)
        cache.prefetch(refs[4:], "reader")
        await served(rig, cache, refs[4:])
        await served(rig, cache, refs[2:4])
        cache.prefetch([], "reader")
        assert rig.disk_bytes() <= cache.limit_bytes
    assert rig.recorder.total(CACHE_ERRORS) == 0


async def test_case_42_directory_removed_in_mid_fill(rig: CacheRig) -> None:
    """When the directory goes while a fill runs, that acquire fails with what happened and the next one works."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    async with rig.open(ROOMY) as cache:
        acquiring = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: rig.fetcher.running)
        shutil.rmtree(rig.directory)
        rig.fetcher.release(ref)
        with pytest.raises(CacheUnavailable, match="no such file"):
            await acquiring
        await served(rig, cache, [ref])


async def test_case_42_another_directory_mounted_over_it(rig: CacheRig) -> None:
    """Where a directory of other contents takes its place, every entry is a miss there and the cache goes on."""
    refs = rig.shards(3)
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, refs)
        rig.directory.rename(rig.directory.with_name("elsewhere"))
        rig.directory.mkdir()
        rig.clock.now_s += 2
        await served(rig, cache, refs)
        assert rig.recorder.total(CACHE_ERRORS, reason="vanished") == 3
    assert set(rig.fetcher.calls.values()) == {2}


async def test_case_43_two_owners(rig: CacheRig) -> None:
    """A second owner is refused by the first one's process; a lock file of a dead one does not stand in the way."""
    rig.directory.mkdir(parents=True)
    (rig.directory / "lock").write_text("999999\n")
    (ref,) = rig.shards(1)
    async with rig.open(ROOMY) as cache:
        for _ in range(2):
            with pytest.raises(CacheUnavailable, match=rf"in use by process {os.getpid()} \[{rig.directory}\]"):
                async with rig.open():
                    pass
        with pytest.raises(CacheUnavailable, match="in use by process"):
            inspect.remove(rig.directory, lambda _: True)
        await served(rig, cache, [ref])
    with DirectoryLock(rig.directory):
        pass


@pytest.mark.parametrize("in_memory", [False, True])
async def test_case_44_evicted_under_a_reader(rig: CacheRig, in_memory: bool) -> None:
    """A pinned entry is not evicted; one that goes while somebody has it open is still read to the end."""
    rig.in_memory = in_memory
    a, b, c = rig.shards(3)
    async with rig.open(capacity=2) as cache:
        with await cache.acquire([a]) as pins:
            await served(rig, cache, [b])
            await served(rig, cache, [c])
            (file,) = pins.files
            assert read(file) == rig.fetcher.data(a)
            reader = Path(file.path).open("rb")  # noqa: SIM115, ASYNC230 - outlives its pin: that is the test
        with reader:
            await served(rig, cache, [b, c])
            assert not cache.holds(a)
            reader.seek(file.data_at)
            assert reader.read() == rig.fetcher.data(a)


async def test_case_45_a_lack_of_memory_at_the_start_is_no_error(rig: CacheRig) -> None:
    """A daemon whose disk works starts on a machine that is short of memory; memory is asked for when it is taken."""
    left = [200 * MIB]
    (ref,) = rig.shards(1)
    async with memory_cache(64 * MIB, rig.fetcher, rig.recorder, rig.clock, available=lambda: left[0]) as cache:
        with pytest.raises(CacheUnavailable, match=r"a reserve of 256MiB need more memory than the 200MiB free"):
            await cache.acquire([ref])
        left[0] = 1024 * MIB
        await served(rig, cache, [ref])


async def test_case_45_no_memory_is_taken_that_is_not_there(rig: CacheRig) -> None:
    """Memory is taken only while the machine and the control group have more than a reserve; entries give way first."""
    left = [1024 * MIB]
    refs = [rig.shard(f"s{number}", 2 * MIB) for number in range(3)]
    cache = memory_cache(64 * MIB, rig.fetcher, rig.recorder, rig.clock, available=lambda: left[0])
    async with cache:
        await served(rig, cache, refs[:2])
        left[0] = 257 * MIB
        with pytest.raises(CacheUnavailable, match=r"a reserve of 256MiB need more memory than the 257MiB free"):
            await cache.acquire([refs[2]])
        assert cache.stats.entry_count < 2  # they were given up in the hope of room
        assert cache.stats.reserved_bytes == 0
        left[0] = 1024 * MIB
        await served(rig, cache, refs)


@pytest.fixture
def server() -> Iterator[S3Server]:
    """An S3 server that counts."""
    with S3Server() as running:
        yield running


async def test_case_48_hundred_readers_one_cold_object(server: S3Server, tmp_path: Path) -> None:
    """However many ask for a cold object, and though the first one leaves, the store sees exactly one GET of it."""
    data = bytes(range(256)) * 512
    server.put("bucket", "train/a.tar", data)
    recorder, clock = TallyRecorder(), TimelessClock()
    source = SourceOptions(s3={"*": S3Options(endpoint_url=server.url, anonymous=True)})
    async with (
        Sources(source, recorder, clock, LoopThread("feedd-fetch")) as sources,
        Cache(CacheOptions(tmp_path / "cache", 64 * MIB, 0), sources.fetcher, recorder, clock) as cache,
    ):
        (ref,) = await sources.resolve(["s3://bucket/train/a.tar"])
        async with asyncio.TaskGroup() as group:
            leader = group.create_task(cache.acquire([ref]))
            tasks = [group.create_task(cache.acquire([ref])) for _ in range(99)]
            await until(lambda: cache.stats.pin_count == 100)
            leader.cancel()
            for task in tasks:
                with await task as pins:
                    assert read(pins.files[0]) == data
        assert len([request for request in server.requests if request.op == "GET"]) == 1
    assert recorder.total(CACHE_PINS) == recorder.total(CACHE_RESERVED) == 0


async def test_case_48_failed_leader_does_not_poison_those_who_wait(rig: CacheRig) -> None:
    """When the one fetch fails all who joined it hear why, and the next to ask starts another that serves them all."""
    (ref,) = rig.shards(1)
    rig.fetcher.hold(ref)
    rig.fetcher.fail(ref, StoreUnavailable("expected a body, got a reset"))
    async with rig.open(ROOMY) as cache:
        tasks = [asyncio.ensure_future(cache.acquire([ref])) for _ in range(100)]
        await until(lambda: cache.stats.pin_count == 100)
        rig.fetcher.release(ref)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} == {StoreUnavailable}
        for pins in await asyncio.gather(*(cache.acquire([ref]) for _ in range(100))):
            with pins:
                rig.check(pins, [ref])
    assert rig.fetcher.calls[ref.key] == 2


async def test_case_52_closed_in_mid_fill(rig: CacheRig) -> None:
    """A cache told to stop ends its fills at once, leaves whole files only, and a successor goes on with those."""
    whole, *half = rig.shards(4)
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, [whole])
        rig.fetcher.hold(*half)
        waiting = [asyncio.ensure_future(cache.acquire([ref])) for ref in half]
        await until(lambda: len(rig.fetcher.running) == 3)
        await cache.close()
        for task in waiting:
            with pytest.raises(Draining):
                await task
        assert not rig.fetcher.running
        assert [path.name for path in rig.entry_files()] == [path_of(rig, whole).name]
    rig.fetcher.release(*half)
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, [whole, *half])
    assert rig.fetcher.calls[whole.key] == 1


MEMORY_VICTIM = """
import asyncio
from pathlib import Path
from tests.fakes.caches import CacheRig, read

async def main():
    rig = CacheRig(Path("unused"), in_memory=True)
    refs = rig.shards(2)
    async with rig.open() as cache:
        with await cache.acquire(refs) as pins:
            print(pins.files[1].path, pins.files[1].data_at, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_memory_is_read_by_others_and_gone_with_its_owner(rig: CacheRig) -> None:
    """A process of this user reads a shard in memory, cannot write it, and nothing is left once its owner is killed."""
    _, ref = rig.shards(2)
    command = [sys.executable, "-c", MEMORY_VICTIM]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:  # noqa: ASYNC220 - nothing else runs on this loop
        try:
            assert owner.stdout is not None
            path, data_at = owner.stdout.readline().split()
            assert read(ShardFile(ref, path, int(data_at))) == rig.fetcher.data(ref)
            fd = os.open(path, os.O_RDWR)
            try:
                for refused in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0)):
                    with pytest.raises(PermissionError):
                        refused()
            finally:
                os.close(fd)
        finally:
            owner.kill()
        owner.wait(PATIENT_S)
    assert not os.path.exists(path)  # noqa: ASYNC240, PTH110 - one look at /proc
