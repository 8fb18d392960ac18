"""Entries are read by descriptors, which the cache opens for their readers and closes again."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import files as entry_files
from feedd.cache.directory import DirectoryStorage
from feedd.cache.pins import with_pinned
from feedd.cache.storage import Finding
from feedd.errors import CacheUnavailable
from feedd.metrics import CACHE_ERRORS
from feedd.workers.calls import file_messages
from tests.fakes.caches import CacheRig
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.cache.cache import Cache
    from feedd.values import ObjectRef, ShardFile


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache in an empty directory."""
    return CacheRig(tmp_path / "cache")


def _storage(cache: Cache) -> DirectoryStorage:
    assert isinstance(cache._disk._storage, DirectoryStorage)
    return cache._disk._storage


def _bytes(file: ShardFile) -> bytes:
    return os.pread(file.fd, file.ref.size_bytes, file.data_at)


def _open_shards(rig: CacheRig) -> list[str]:
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue  # of the listing itself
        if target.startswith(str(rig.directory)) and ".shard" in target:
            found.append(target)
    return found


async def _forget(rig: CacheRig, cache: Cache) -> None:
    """Wait until the cache has closed all files."""
    await until(lambda: not _storage(cache)._files)
    await until(lambda: not _open_shards(rig))


@pytest.mark.parametrize("lost", ["file", "directory"])
async def test_a_file_that_is_gone_when_it_is_opened_is_fetched_again(rig: CacheRig, lost: str) -> None:
    """Where a file vanishes between two looks at it, its reader gets a fresh copy and no error."""
    refs = rig.shards(3)
    async with rig.open() as cache:
        (await cache.acquire(refs)).release()
        await _forget(rig, cache)
        if lost == "file":
            rig.entry_files()[0].unlink()
        else:
            shutil.rmtree(rig.directory)
        with await cache.acquire(refs) as pins:
            assert [_bytes(file) for file in pins.files] == [rig.fetcher.data(ref) for ref in refs]
    assert rig.recorder.total(CACHE_ERRORS, reason="vanished") == (1 if lost == "file" else 3)


async def test_a_file_that_always_vanishes_is_an_error(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three fetches the reader gets an error that names the directory, and nothing stays pinned."""
    (ref,) = rig.shards(1)

    async def vanished(_: DirectoryStorage, refs: Sequence[ObjectRef]) -> list[Finding]:
        return [Finding.VANISHED for _ in refs]

    monkeypatch.setattr(DirectoryStorage, "open_files", vanished)
    async with rig.open() as cache:
        with pytest.raises(CacheUnavailable, match="vanish as soon as they are fetched") as failure:
            await cache.acquire([ref])
        assert failure.value.object == str(rig.directory)
    assert rig.fetcher.calls[ref.key] == 3


async def test_a_reader_keeps_the_file_that_it_began_with(rig: CacheRig) -> None:
    """An entry that is fetched again has another descriptor; the reader of the former file reads on."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        with await cache.acquire([ref]) as former:
            rig.entry_files()[0].unlink()
            rig.clock.now_s += 2
            with await cache.acquire([ref]) as latter:
                inodes = {os.fstat(pins.files[0].fd).st_ino for pins in (former, latter)}
                assert len(inodes) == 2
                assert _bytes(former.files[0]) == _bytes(latter.files[0]) == rig.fetcher.data(ref)
            with await cache.acquire([ref]) as again:
                assert again.files[0].fd == latter_fd(cache, ref)
        await _forget(rig, cache)


def latter_fd(cache: Cache, ref: ObjectRef) -> int:
    """Return the descriptor that the cache keeps of an entry."""
    return _storage(cache)._files[ref].file.fd


async def test_descriptors_are_bounded(rig: CacheRig) -> None:
    """Beyond a limit, files are opened for each request of a worker; unused files are closed after a moment."""
    refs = rig.shards(8)
    async with rig.open() as cache:
        _storage(cache)._files_max = 2
        with await cache.acquire(refs) as pins:
            assert len(_open_shards(rig)) == 2
            late = [file.ref.key for file in pins.files if file.is_opened_late]
            assert len(late) == 6
            sent = file_messages(pins.files)
            assert [message.given for message in sent.messages] == list(range(8))
            for fd, message, ref in zip(sent.fds, sent.messages, refs, strict=True):
                assert os.pread(fd, ref.size_bytes, message.data_at) == rig.fetcher.data(ref)
            del sent
            assert len(_open_shards(rig)) == 2, "the others were closed with their request"
            shutil.rmtree(rig.directory)
            with pytest.raises(CacheUnavailable, match=late[0]):
                file_messages(pins.files)
        for ref in refs:
            (await cache.acquire([ref])).release()
            assert len(_open_shards(rig)) <= 2
        await _forget(rig, cache)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("how", ["linked", "swapped"])
async def test_the_file_of_another_entry_is_never_read(rig: CacheRig, how: str) -> None:
    """An entry at whose path another entry's file of the same length lies is fetched again, and read exactly."""
    one, other = rig.fetcher.put("one", b"1" * 9000), rig.fetcher.put("two", b"2" * 9000)
    async with rig.open() as cache:
        (await cache.acquire([one, other])).release()
        await _forget(rig, cache)
        first, second = rig.entry_files()
        if how == "linked":
            second.unlink()
            second.hardlink_to(first)
        else:
            first.rename(first.with_suffix(".moved"))
            second.rename(first)
            first.with_suffix(".moved").rename(second)
        rig.clock.now_s += 2
        with await cache.acquire([one, other]) as pins:
            assert [_bytes(file) for file in pins.files] == [b"1" * 9000, b"2" * 9000]


_REPLACED: dict[str, Callable[[Path], None]] = {"fifo": _fifo, "folder": _folder, "short": _short, "gone": Path.unlink}


@pytest.mark.parametrize("how", _REPLACED)
async def test_a_file_that_is_opened_late_is_checked_by_the_cache(rig: CacheRig, how: str) -> None:
    """Beyond the limit of open files, an entry whose file was replaced, cut or removed is fetched again."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        _storage(cache)._files_max = 0
        (await cache.acquire([ref])).release()
        _REPLACED[how](rig.entry_files()[0])
        if how == "folder":  # nothing can be renamed to its path, which is an error and no wait
            with pytest.raises(CacheUnavailable):
                await cache.acquire([ref])
            return
        with await cache.acquire([ref]) as pins:
            assert pins.files[0].is_opened_late
            sent = file_messages(pins.files)
            assert os.pread(sent.fds[0], ref.size_bytes, sent.messages[0].data_at) == rig.fetcher.data(ref)
        assert rig.fetcher.calls[ref.key] == 2


@pytest.mark.parametrize("how", _REPLACED)
async def test_a_file_that_is_opened_late_never_blocks_the_loop(rig: CacheRig, how: str) -> None:
    """A file that is replaced, cut or removed between the cache's check and a request is a miss, and no wait."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        _storage(cache)._files_max = 0
        with await cache.acquire([ref]) as pins:
            _REPLACED[how](rig.entry_files()[0])
            with pytest.raises(CacheUnavailable, match=ref.key):
                file_messages(pins.files)


async def test_a_fetched_entry_is_open_for_its_reader(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader of an entry waits for no second opening, and the file is closed when it was not used lately."""
    (ref,) = rig.shards(1)
    opened: list[object] = []
    monkeypatch.setattr(entry_files, "open_files", opened.append)
    async with rig.open() as cache:
        with await cache.acquire([ref]) as pins:
            assert _bytes(pins.files[0]) == rig.fetcher.data(ref)
        await _forget(rig, cache)
    assert not opened


async def test_a_process_without_descriptors_closes_unused_files(
    rig: CacheRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no descriptor is left, files that no reader needs are closed, and the entry is opened then."""
    refs = rig.shards(4)
    real, opened_counts = entry_files.open_files, []

    def scarce(wanted: Sequence[tuple[Path, ObjectRef]]) -> object:
        opened_counts.append(len(_open_shards(rig)))
        if len(_open_shards(rig)) > 2:
            raise CacheUnavailable("too many open files", stage="cache")
        return real(wanted)

    async with rig.open() as cache:
        for ref in refs:
            (await cache.acquire([ref])).release()
    monkeypatch.setattr(entry_files, "open_files", scarce)
    async with rig.open() as cache:
        for ref in refs:
            with await cache.acquire([ref]) as pins:
                assert _bytes(pins.files[0]) == rig.fetcher.data(ref)
    assert max(opened_counts) == 3


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_read_that_fails_is_done_again_twice(rig: CacheRig, failures: int) -> None:
    """Bytes that cannot be read are fetched again and read again, twice at most; the third failure is an error."""
    (ref,) = rig.shards(1)
    tries = 0

    async def read(files: tuple[ShardFile, ...]) -> bytes:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        if tries <= failures:
            raise CacheUnavailable("expected bytes, got none", object=ref.url, stage="decode")
        return _bytes(files[0])

    async with rig.open() as cache:
        if failures < 3:
            assert await with_pinned(cache, [ref], read) == rig.fetcher.data(ref)
        else:
            with pytest.raises(CacheUnavailable, match="expected bytes"):
                await with_pinned(cache, [ref], read)
    assert rig.fetcher.calls[ref.key] == min(failures, 2) + 1


@pytest.mark.parametrize("is_open", [False, True])
async def test_an_idle_entry_costs_its_reader_one_job_of_a_thread(
    rig: CacheRig, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Whether its file is closed or still open, one job finds out that the entry is there, and opens it if need be."""
    refs = rig.shards(3)
    async with rig.open() as cache:
        (await cache.acquire(refs)).release()
        if not is_open:
            await _forget(rig, cache)
        rig.clock.now_s += 2
        disk = _storage(cache)._disk
        jobs, look = list[object](), disk.look

        async def counted(job: Callable[..., object], *args: object) -> object:
            jobs.append(job)
            return await look(job, *args)

        monkeypatch.setattr(disk, "look", counted)
        with await cache.acquire(refs) as pins:
            assert [_bytes(file) for file in pins.files] == [rig.fetcher.data(ref) for ref in refs]
        assert len(jobs) == 1, jobs


async def test_a_fill_makes_no_folder_that_exists(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fill into a folder of an earlier entry tries to make no folder."""
    (ref,) = rig.shards(1)
    async with rig.open() as cache:
        (await cache.acquire([ref])).release()
        rig.entry_files()[0].unlink()
        rig.clock.now_s += 2
        made = list[Path]()
        monkeypatch.setattr(Path, "mkdir", lambda path, *_args, **_kwargs: made.append(path))
        with await cache.acquire([ref]) as pins:
            assert _bytes(pins.files[0]) == rig.fetcher.data(ref)
        assert rig.fetcher.calls[ref.key] == 2
        assert not made
