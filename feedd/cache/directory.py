"""Stores entries as whole files in one directory, which is owned while open.

One thread changes the directory, in the order in which changes were decided. Evicted files give their pages to the next
fills.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar

import structlog

from feedd.cache import entry_layout, files, os_errors, recovery
from feedd.cache.lock import LOCK_NAME, DirectoryLock, open_locked
from feedd.cache.recovery import record_of
from feedd.cache.storage import Depth, Draft, Finding, Names
from feedd.errors import CacheUnavailable
from feedd.flow import mounts
from feedd.flow.pools import Pool
from feedd.flow.range_sinks import FileSink
from feedd.flow.sink_file import OpenFile, SinkFile
from feedd.units import format_size
from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from feedd.cache.block_sums import BlockSums
    from feedd.cache.options import CacheOptions
    from feedd.cache.storage import Opened, UnindexedFile
    from feedd.values import ObjectRef

_P = ParamSpec("_P")
_T = TypeVar("_T")
_OPEN_DEADLINE_S = 300.0
_LOOK_FLOOR_S = 30.0  # plus as long again for every 256 MiB: a disk that reads below 8 MiB/s has failed
_LOOK_BYTES_PER_S = 8 << 20
_FILES_LEAST = 64
_FILES_SHARE = 4  # open files may take one of so many descriptors
_FILES_KEPT_S = 1.0  # no thread call per batch
_SPARE_FOR_S = 1.0  # an eviction that makes room is followed by its fill at once
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _CachedFile:
    """An open file, and whether it was used since the last look."""

    file: ShardFile
    descriptor: OpenFile
    is_used: bool = True


def _cached(ref: ObjectRef, path: Path, opened: OpenFile) -> _CachedFile:
    return _CachedFile(ShardFile(ref, str(path), entry_layout.data_at(ref), fd=opened.fd, owned=opened), opened)


class DirectoryStorage:
    """Files of a directory: an ``EntryStorage``. One thread changes the directory, a few threads read it."""

    shared: Final = True

    def __init__(self, options: CacheOptions) -> None:
        self.names = Names(
            where=str(options.directory),
            space="disk space",
            free_hint="free disk space, or lower --cache-size below what the disk can hold",
            grow_hint="raise --cache-size, use a larger disk",
        )
        self._options = options
        self._lock = DirectoryLock(options.directory)
        self._folder_fd = -1
        self._spares = Spares()
        self._dropping: asyncio.TimerHandle | None = None
        self._runs: dict[ObjectRef, tuple[bytes, bytes]] = {}  # of entries written by earlier runs
        self._files: dict[ObjectRef, _CachedFile] = {}  # of entries requested lately
        self._files_max = max(_FILES_LEAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _FILES_SHARE)
        self._opening: dict[object, set[ObjectRef]] = {}  # entries that changed while a call opens files, by call
        self._closing: asyncio.TimerHandle | None = None

    async def open(self, failed: Callable[[BaseException], None]) -> Opened:
        """Lock the directory and read its index.

        Raises:
            CacheUnavailable: another process owns the directory, it cannot be written, the disk has no room for a
                cache, or the disk does not answer.
        """
        self._disk = DiskThread(failed)
        try:
            async with asyncio.timeout(_OPEN_DEADLINE_S):
                taken = await self._disk.change(recovery.open_directory, self._options, self._lock)
        except BaseException as error:
            self._disk.post(self._lock.__exit__)
            await self._disk.close(_LOOK_FLOOR_S)
            if isinstance(error, TimeoutError):
                raise os_errors.stalled(self._options.directory, _OPEN_DEADLINE_S) from error
            raise
        self._disk.post(self._keep_cleaners_out)
        self._ledger = taken.ledger
        self._journal = taken.journal
        self._runs = taken.runs
        limit_bytes = taken.opened.index.limit_bytes
        if limit_bytes < self._options.size_bytes:
            _log.warning(
                "cache is limited by the disk, not by its configured size",
                cache=f"{self._options.directory}, {format_size(self._options.size_bytes)}",
                limit=format_size(limit_bytes),
            )
        return taken.opened

    async def open_files(self, refs: Sequence[ObjectRef]) -> list[ShardFile | Finding]:
        """Return the open files of entries, or why a file cannot be opened. Files used lately are open already."""
        kept = [self._files.get(ref) for ref in refs]
        for cached in kept:
            if cached is not None:
                cached.is_used = True
        missing = [ref for ref, cached in zip(refs, kept, strict=True) if cached is None]
        opened = iter(await self._opened(missing) if missing else ())
        return [next(opened) if cached is None else cached.file for cached in kept]

    async def create(self, ref: ObjectRef) -> Draft:
        """Allocate a file."""
        temp = entry_layout.temp_path(self._path(ref))
        size_bytes = entry_layout.data_at(ref) + ref.size_bytes
        try:
            file = await self._disk.change(self._create, temp, size_bytes)
        except asyncio.CancelledError:
            self._disk.post(files.remove, temp)
            raise
        return Draft(ref, file, temp)

    async def publish(self, draft: Draft, sums: BlockSums) -> None:
        """Write the header, rename the file, add it to the journal, and keep it open for the reader that waits."""
        draft.published = True
        is_kept = len(OpenFile.live) < self._files_max
        found = await self._disk.change(self._publish, draft, sums, is_kept=is_kept)
        self._close_changed((draft.ref,))
        if found is not None and len(OpenFile.live) <= self._files_max:  # others were published meanwhile
            self._keep(found)

    def abandon(self, draft: Draft) -> None:
        """Close and unlink the draft's file, after all jobs handed over before, cancelled or not."""
        assert draft.temp is not None, "drafts of a directory have a file"
        self._disk.post(draft.file.close)
        self._disk.post(files.remove, draft.temp, *([self._path(draft.ref)] if draft.published else []))

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Unlink the files of entries."""
        paths = self._forget(refs)
        if paths:
            self._disk.post(files.remove, *paths)

    def evict(self, refs: Iterable[ObjectRef]) -> None:
        """Keep files for the fills that follow at once, then unlink them."""
        paths = self._forget(refs)
        if not paths:
            return
        self._disk.post(self._spares.retire, paths)
        if self._dropping is not None:
            self._dropping.cancel()
        self._dropping = asyncio.get_running_loop().call_later(_SPARE_FOR_S, self._drop_spares)

    async def look(self, refs: Sequence[ObjectRef], depth: Depth) -> list[Finding]:
        """Verify files in separate threads. A closed file whose length is asked for stays open for its reader."""
        if depth is Depth.LENGTH and all(ref not in self._files for ref in refs):
            opened = await self.open_files(refs)
            return [one if isinstance(one, Finding) else Finding.WHOLE for one in opened]
        wanted = [(self._path(ref), ref) for ref in refs]
        deadline_s = _LOOK_FLOOR_S + sum(ref.size_bytes for ref in refs) / _LOOK_BYTES_PER_S
        deadline_s = min(deadline_s, self._options.fill_deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._disk.look(files.look, wanted, depth, self._ledger.believes)
        except TimeoutError as error:
            raise os_errors.stalled(self._options.directory, deadline_s) from error

    async def identify(self, unindexed: Sequence[UnindexedFile]) -> list[ObjectRef]:
        """Read the headers of files that the journal did not list.

        This runs in the thread for changes, so that a broken file cannot be replaced by a good one before its removal.
        """
        headers = await self._disk.change(recovery.identify, self._options.directory, self._ledger, unindexed)
        for header in headers:
            self._runs[header.ref] = header.boot, header.run
        return [header.ref for header in headers]

    async def close(self, entries: Sequence[ObjectRef], deadline_s: float) -> bool:
        """Write the journal, release the lock, and flush the file system.

        The next owner does not wait for the flush: what this owner wrote is in the page cache, and the next owner lists
        this run as flushed, too, when it flushes the file system at its own end.
        """
        for timer in filter(None, (self._dropping, self._closing)):
            timer.cancel()
        self._files.clear()
        self._drop_spares()
        try:
            async with asyncio.timeout(deadline_s):
                try:
                    await self._disk.change(self._list, entries)
                finally:
                    for job in (self._journal.close, self._let_cleaners_in, self._lock.__exit__):
                        self._disk.post(job)
                await self._disk.change(self._ledger.flush, {run for _, run in self._runs.values()})
        except (CacheUnavailable, TimeoutError) as error:
            _log.warning("cache not flushed: a power cut would empty it", error=str(error) or "timed out")
            return False
        else:
            return True
        finally:
            await self._disk.close(deadline_s)

    async def _opened(self, refs: Sequence[ObjectRef]) -> list[ShardFile | Finding]:
        if len(OpenFile.live) + len(refs) > self._files_max:
            self._files.clear()
        wanted = [(self._path(ref), ref) for ref in refs]
        later = wanted[max(0, self._files_max - len(OpenFile.live)) :]  # opened whenever a worker needs them
        del wanted[len(wanted) - len(later) :]
        call = object()
        changed = self._opening[call] = set()
        try:
            opened = await self._open_now(files.open_files, wanted) if wanted else []
            # The loop opens these files again, so a thread must find out first whether the disk answers.
            checked = await self._open_now(files.check_files, later) if later else []
        finally:
            del self._opening[call]
        answers: list[ShardFile | Finding] = []
        for (path, ref), found in zip(wanted, opened, strict=True):
            if isinstance(found, Finding):
                answers.append(found)
                continue
            cached = _cached(ref, path, found)
            answers.append(cached.file)
            if ref not in changed:
                self._keep(cached)
        for (path, ref), finding in zip(later, checked, strict=True):
            late = ShardFile(ref, str(path), entry_layout.data_at(ref), is_opened_late=True)
            answers.append(late if finding is Finding.WHOLE else finding)
        return answers

    def _keep(self, cached: _CachedFile) -> None:
        """Keep an entry's file open until it was not used for a while."""
        self._files[cached.file.ref] = cached
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(_FILES_KEPT_S, self._close_unused)

    async def _open_now(
        self, job: Callable[[Sequence[tuple[Path, ObjectRef]]], list[_T]], wanted: Sequence[tuple[Path, ObjectRef]]
    ) -> list[_T]:
        try:
            async with asyncio.timeout(_LOOK_FLOOR_S):
                try:
                    return await self._disk.look(job, wanted)
                except CacheUnavailable:
                    if not self._files:
                        raise
                    self._files.clear()  # the limit on open files was reached
                    return await self._disk.look(job, wanted)
        except TimeoutError as error:
            raise os_errors.stalled(self._options.directory, _LOOK_FLOOR_S) from error

    def _close_unused(self) -> None:
        """Close the files that were not used since the last call. Those of pinned entries close with their pins."""
        self._closing = None
        self._files = {ref: cached for ref, cached in self._files.items() if cached.is_used}
        for cached in self._files.values():
            cached.is_used = False
        if self._files:
            self._closing = asyncio.get_running_loop().call_later(_FILES_KEPT_S, self._close_unused)

    def _close_changed(self, refs: Iterable[ObjectRef]) -> None:
        """Close the files of entries that have another file from now on, or none."""
        for ref in refs:
            self._files.pop(ref, None)
            for changed in self._opening.values():
                changed.add(ref)

    def _drop_spares(self) -> None:
        self._dropping = None
        self._disk.post(self._spares.drop)

    def _forget(self, refs: Iterable[ObjectRef]) -> list[Path]:
        gone = list(refs)
        for cached in [self._files[ref] for ref in gone if ref in self._files]:
            cached.descriptor.close()  # now, because a file that is open anywhere gives no pages to the next fill
        self._close_changed(gone)
        for ref in gone:
            self._runs.pop(ref, None)
        return [self._path(ref) for ref in gone]

    def _create(self, temp: Path, size_bytes: int) -> SinkFile:
        if not files.is_at(self._options.directory / LOCK_NAME, self._lock.fd):
            self._move_in()
        reserve_bytes = self._options.free_reserve_bytes
        file = self._spares.take(temp, size_bytes, reserve_bytes)
        return files.create(temp, size_bytes, reserve_bytes) if file is None else file

    def _move_in(self) -> None:
        """Lock the directory again, because it was removed, moved or emptied, or another one is mounted over it.

        Raises:
            CacheUnavailable: another process owns the directory, or it cannot be used.
        """
        directory = self._options.directory
        if not self._options.allow_network_fs:
            mounts.refuse_network(directory)
        with contextlib.suppress(OSError):  # its file may lie on a file system that is gone
            self._lock.__exit__()
        self._lock.__enter__()
        self._keep_cleaners_out()
        self._journal.start(())
        _log.warning(
            "the cache directory was removed, moved or replaced: its shards are fetched again", directory=str(directory)
        )

    def _keep_cleaners_out(self) -> None:
        """Lock the folder of the entries, because ``systemd-tmpfiles`` removes nothing from a locked folder."""
        self._let_cleaners_in()
        with contextlib.suppress(OSError):
            self._folder_fd = open_locked(self._options.directory / entry_layout.FORMAT_FOLDER)

    def _let_cleaners_in(self) -> None:
        fd, self._folder_fd = self._folder_fd, -1
        if fd >= 0:
            os.close(fd)

    def _publish(self, draft: Draft, sums: BlockSums, *, is_kept: bool) -> _CachedFile | None:
        ref, final = draft.ref, self._path(draft.ref)
        start = entry_layout.data_at(ref)
        assert draft.temp is not None, "drafts of a directory have a file"
        try:
            table = sums.finish(FileSink(draft.file, start, ref.size_bytes))
        except OSError as error:
            raise os_errors.unavailable(error, draft.temp) from error
        header = entry_layout.pack_header(ref, self._ledger.boot, self._ledger.run, table)
        opened = files.publish(draft.file, header, draft.temp, final, is_kept=is_kept)
        self._runs.pop(ref, None)
        self._journal.add(record_of(ref, self._ledger.boot, self._ledger.run))
        return None if opened is None else _cached(ref, final, opened)

    def _list(self, entries: Sequence[ObjectRef]) -> None:
        own = self._ledger.boot, self._ledger.run
        self._journal.start(record_of(ref, *self._runs.get(ref, own)) for ref in entries)

    def _path(self, ref: ObjectRef) -> Path:
        return entry_layout.file_path(self._options.directory, ref)


class DiskThread:
    """One thread for everything that changes the directory, and a few for reading it.

    The single changing thread keeps the disk in step with the index without a lock. An evicted file is unlinked before
    later space is allocated, and before a later fill of the same object is renamed. A job that was handed over always
    runs, even if the waiting task ends. The threads are daemon threads, so a hanging disk does not keep the process
    from ending.
    """

    def __init__(self, failed: Callable[[BaseException], None], look_threads: int = 4) -> None:
        self._failed = failed
        self._changes = Pool("cache-changes", 1)
        self._looks = Pool("cache-looks", look_threads)
        self._closed = False

    async def change(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run ``job`` after all changes handed over before; cancelling the wait does not cancel the job."""
        return await _shielded(self._changes.begin(job, *args, **kwargs))

    def post(self, job: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Hand over a change without waiting for it; an exception goes to ``failed`` on the loop.

        After ``close`` the job is dropped; the next start's scan finds the files it would have removed.
        """
        if self._closed:
            return

        def report(done: asyncio.Future[object]) -> None:
            error = done.exception()
            if error is not None:
                self._failed(error)

        self._changes.begin(job, *args, **kwargs).add_done_callback(report)

    async def look(self, job: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run ``job``, which changes nothing, without waiting for changes."""
        return await _shielded(self._looks.begin(job, *args, **kwargs))

    async def close(self, deadline_s: float) -> None:
        """Finish all changes handed over, then end the threads; threads stuck past the deadline are abandoned."""
        if self._closed:
            return
        self._closed = True
        idle = False
        try:
            async with asyncio.timeout(deadline_s):
                await self.change(lambda: None)
                await self.look(lambda: None)
                idle = True
        except TimeoutError:
            self._failed(TimeoutError("the disk did not finish its work in time"))
        finally:
            # Busy threads are not joined: the disk hangs, or this call was cancelled.
            self._changes.close(wait=idle)
            self._looks.close(wait=idle)


def _shielded(job: asyncio.Future[_T]) -> asyncio.Future[_T]:
    """Return a future of a job that runs on if the wait is cancelled; its error then belongs to nothing any more.

    No coroutine may keep ``job`` in a variable: the traceback of a cancelled wait would hold its result, an open file.
    """
    job.add_done_callback(_retrieve)
    return asyncio.shield(job)


def _retrieve(job: asyncio.Future[_T]) -> None:
    """Mark a job's error as read: asyncio logs errors without a reader as defects."""
    if not job.cancelled():
        job.exception()


class _Spare(NamedTuple):
    path: Path
    disk_bytes: int


class Spares:
    """Evicted files until their reuse, under names of unfinished fills: a start after a crash removes them. Blocking.

    Fresh pages are expensive. Measured (Linux 6.18, CPU-seconds per GB through a mapping): a new file after unlinking
    the old one takes 0.89 on tmpfs and 0.36 on ext4. Overwriting the old file takes 0.20 and 0.13.

    A file that any process has open or mapped is unlinked instead, so its reader finishes with the bytes it began with.
    The kernel shows this by granting a write lease only on a file that no other process has open. The directory never
    grows by more than the space that was free when the spares were retired.
    """

    def __init__(self) -> None:
        self._spares: list[_Spare] = []

    def retire(self, paths: Sequence[Path]) -> None:
        """Rename evicted entries so that no reader finds them.

        Raises:
            CacheUnavailable: a file can neither be kept nor removed; all others are retired first.
        """
        left = []
        for path in paths:
            spare = entry_layout.temp_path(path)
            try:
                path.rename(spare)  # no reader finds the file from here on
                self._spares.append(_Spare(spare, _reusable_bytes(spare)))
            except OSError:
                left += [path, spare]
        files.remove(*left)

    def take(self, path: Path, size_bytes: int, reserve_bytes: int) -> SinkFile | None:
        """Return a spare as a new file of this name and size, allocated, or None if there is none."""
        disk_bytes = entry_layout.whole_pages(size_bytes)
        while self._spares:
            same = [spare for spare in self._spares if spare.disk_bytes == disk_bytes]
            chosen = same[0] if same else max(self._spares, key=lambda spare: spare.disk_bytes)
            self._spares.remove(chosen)
            grown_bytes = disk_bytes - chosen.disk_bytes
            while grown_bytes > 0 and self._spares:  # other spares give up the bytes by which this file grows
                grown_bytes -= self._drop_one()
            try:
                if grown_bytes > 0 and files.free_bytes(chosen.path.parent) - grown_bytes < reserve_bytes:
                    raise OSError  # noqa: TRY301 - the same end as a refusal below
                return _renewed(chosen.path, path, size_bytes)
            except OSError:
                for leftover in (chosen.path, path):
                    with contextlib.suppress(OSError):
                        leftover.unlink(missing_ok=True)
        return None

    def drop(self) -> None:
        """Remove all unused spares."""
        while self._spares:
            self._drop_one()

    def _drop_one(self) -> int:
        spare = self._spares.pop()
        files.remove(spare.path)
        return spare.disk_bytes


def _reusable_bytes(path: Path) -> int:
    """Return the disk bytes of a file.

    Raises:
        OSError: a process has the file open or mapped, or the file system supports no leases.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return entry_layout.whole_pages(os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _renewed(old: Path, new: Path, size_bytes: int) -> SinkFile:
    new.parent.mkdir(mode=0o700, exist_ok=True)
    old.rename(new)
    fd = os.open(new, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(fd, size_bytes)
        # Also for a file that seems whole, since a hole would end a worker that maps it.
        os.posix_fallocate(fd, 0, size_bytes)
        return SinkFile(fd)
    finally:
        os.close(fd)
