"""Stores entries in anonymous memory files, which end with this process however it ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
from typing import TYPE_CHECKING, Final

from feedd.cache import entry_layout, os_errors
from feedd.cache.directory import DiskThread
from feedd.cache.index import CacheIndex
from feedd.cache.os_errors import StorageFull
from feedd.cache.storage import Draft, Finding, Names, Opened
from feedd.errors import CacheUnavailable, Unsupported
from feedd.flow.memory import available_bytes
from feedd.flow.sink_file import OpenFile, SinkFile, memory_file
from feedd.units import MIB
from feedd.values import ShardFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from feedd.cache.block_sums import BlockSums
    from feedd.cache.storage import Depth, UnindexedFile
    from feedd.values import ObjectRef

_RESERVE_BYTES: Final = 256 * MIB  # memory left for everything else
_STEP_BYTES: Final = 64 * MIB  # allocated between two checks of the free memory
_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE: later opens can only read
_NAMES: Final = Names(
    where="memory",
    space="memory",
    free_hint="lower cache.bypass, or give the control group more",
    grow_hint="raise cache.bypass",
)


class MemoryStorage:
    """Anonymous files (memfd) of this process: an ``EntryStorage``. Workers get their descriptors.

    The storage never allocates memory that could wake the kernel's OOM killer. Before each step, the machine and the
    control group must have the step's bytes plus the reserve left.
    """

    names: Final = _NAMES
    shared: Final = False  # the files are sealed and end with this process

    def __init__(self, size_bytes: int, available: Callable[[], int | None] = available_bytes) -> None:
        """Take at most ``size_bytes``, and never more than ``available`` reports as left."""
        self._size_bytes = size_bytes
        self._available = available
        self._files: dict[ObjectRef, OpenFile] = {}  # changed on the loop; closed in the thread

    async def open(self, failed: Callable[[BaseException], None]) -> Opened:
        """Start empty; the limit is lowered to the memory that is available, but not below a step.

        Memory may be short now and there when the disk fails, so a lack of it is an error only when memory is taken.
        """
        left = self._available()
        room_bytes = self._size_bytes if left is None else max(left - _RESERVE_BYTES, _STEP_BYTES)
        limit_bytes = min(self._size_bytes, room_bytes)
        self._disk = DiskThread(failed, look_threads=1)
        return Opened(CacheIndex(limit_bytes))

    async def open_files(self, refs: Sequence[ObjectRef]) -> list[ShardFile | Finding]:
        """Return the files of entries, which are always open."""
        return [self._file(ref) for ref in refs]

    async def create(self, ref: ObjectRef) -> Draft:
        """Allocate an anonymous file."""
        made: list[Draft] = []
        try:
            await self._disk.change(self._create, ref, made)
        except asyncio.CancelledError:
            self._disk.post(_free_all, made)  # runs after the allocation, which cannot be cancelled
            raise
        return made[0]

    async def publish(self, draft: Draft, sums: BlockSums) -> None:
        """Seal the file, which is read-only from now on."""
        del sums  # no other process can write this memory, so it needs no checksums
        await self._disk.change(_seal, draft)
        draft.published = True
        self.remove((draft.ref,))  # an earlier file of the object, found damaged
        self._files[draft.ref] = OpenFile(draft.fd)

    def abandon(self, draft: Draft) -> None:
        """Close the draft's file."""
        file = self._files.get(draft.ref)
        if not draft.published:
            self._disk.post(_free, draft)
        elif file is not None and file.fd == draft.fd:
            self.remove((draft.ref,))

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Close files that have no reader, the others with their last one; processes that have one mapped keep it."""
        files = [self._files.pop(ref) for ref in refs if ref in self._files]
        if files:
            self._disk.post(files.clear)

    def evict(self, refs: Iterable[ObjectRef]) -> None:
        """Close files; their size is sealed, so their pages cannot be reused."""
        self.remove(refs)

    async def look(self, refs: Sequence[ObjectRef], depth: Depth) -> list[Finding]:
        """Report which entries exist."""
        del depth
        return [Finding.WHOLE if ref in self._files else Finding.VANISHED for ref in refs]

    async def identify(self, unindexed: Sequence[UnindexedFile]) -> list[ObjectRef]:
        """Return nothing: memory starts without files to examine."""
        assert not unindexed, "memory starts empty"
        return []

    async def close(self, entries: Sequence[ObjectRef], deadline_s: float) -> bool:
        """Free all memory and stop the thread."""
        del entries
        self.remove(tuple(self._files))
        await self._disk.close(deadline_s)
        return True

    def _file(self, ref: ObjectRef) -> ShardFile:
        file = self._files[ref]
        return ShardFile(ref, f"/proc/{os.getpid()}/fd/{file.fd}", entry_layout.data_at(ref), fd=file.fd, owned=file)

    def _create(self, ref: ObjectRef, made: list[Draft]) -> None:
        size_bytes = entry_layout.data_at(ref) + ref.size_bytes
        try:
            fd = memory_file("feedd-shard")
            try:
                os.ftruncate(fd, size_bytes)
                for at in range(entry_layout.data_at(ref), size_bytes, _STEP_BYTES):
                    step_bytes = min(_STEP_BYTES, size_bytes - at)
                    self._check(step_bytes, size_bytes)
                    os.posix_fallocate(fd, at, step_bytes)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                file = SinkFile(fd)
            except BaseException:
                os.close(fd)
                raise
        except Unsupported as error:
            raise CacheUnavailable(error.message, object=_NAMES.where, hint=error.hint, stage="cache") from error
        except OSError as error:
            if os_errors.is_full(error):
                raise StorageFull(size_bytes, self._available() or 0, _RESERVE_BYTES) from error
            raise os_errors.unusable(error, _NAMES) from error
        made.append(Draft(ref, file, fd=fd))

    def _check(self, step_bytes: int, size_bytes: int) -> None:
        left = self._available()
        if left is not None and left - step_bytes < _RESERVE_BYTES:
            raise StorageFull(size_bytes, left, _RESERVE_BYTES)


def _seal(draft: Draft) -> None:
    draft.file.close()
    try:
        fcntl.fcntl(draft.fd, fcntl.F_ADD_SEALS, _FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        raise os_errors.unusable(error, _NAMES) from error


def _free(draft: Draft) -> None:
    draft.file.close()
    os.close(draft.fd)


def _free_all(drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        _free(draft)
