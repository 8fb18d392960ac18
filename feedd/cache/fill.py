"""One fill: space on disk, the object's bytes into it, a header, a name."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from feedd.cache import files, layout, trouble
from feedd.cache.trouble import DiskFull
from feedd.errors import FeeddError, StoreUnavailable
from feedd.units import format_duration

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from feedd.cache.disk_thread import DiskThread
    from feedd.cache.durability import RunLedger
    from feedd.cache.options import CacheOptions
    from feedd.protocols import ShardFetcher
    from feedd.values import ObjectRef


class Filler:
    """Brings objects into the cache directory and takes them out; keeps no books."""

    def __init__(self, options: CacheOptions, fetcher: ShardFetcher, disk: DiskThread, ledger: RunLedger) -> None:
        self._options = options
        self._fetcher = fetcher
        self._disk = disk
        self._ledger = ledger

    def path(self, ref: ObjectRef) -> Path:
        """Return where the object's file is once it is whole."""
        return layout.file_path(self._options.directory, ref)

    def remove(self, refs: Iterable[ObjectRef]) -> None:
        """Hand the removal of files over; done before any space asked for later is allocated."""
        paths = [self.path(ref) for ref in refs]
        if paths:
            self._disk.post(files.remove, *paths)

    async def vanished(self, refs: Sequence[ObjectRef]) -> list[bool]:
        """Tell for each object whether its file is gone or has another length.

        Raises:
            CacheUnavailable: the disk did not answer in time.
        """
        wanted = [(self.path(ref), layout.data_at(ref) + ref.size_bytes) for ref in refs]
        try:
            async with asyncio.timeout(self._options.fill_deadline_s):
                return [not whole for whole in await self._disk.look(files.whole, wanted)]
        except TimeoutError as error:
            raise trouble.stalled(self._options.directory, self._options.fill_deadline_s) from error

    async def fill(self, ref: ObjectRef, make_room: Callable[[DiskFull], bool]) -> None:
        """Fetch ``ref`` into its file; cancelled or failed it leaves no file.

        Args:
            ref: the object.
            make_room: called when the disk is full; hands evictions to the disk thread, or says False.

        Raises:
            CacheUnavailable: the directory cannot be written, or the disk is full.
            StoreUnavailable: it took longer than its deadline.
            Whatever the fetcher raises, with the object's URL where it named none.
        """
        deadline_s = self._options.fill_deadline_s
        scope = asyncio.timeout(deadline_s)
        try:
            async with scope:
                await self._fill(ref, make_room)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise StoreUnavailable(
                f"expected {ref.size_bytes} bytes within {format_duration(deadline_s)}, got no end of them",
                object=ref.url,
                hint="raise the cache's fill deadline if the store is that slow",
                stage="cache",
            ) from error
        except FeeddError as error:
            error.object = error.object or ref.url
            raise

    async def _fill(self, ref: ObjectRef, make_room: Callable[[DiskFull], bool]) -> None:
        final = self.path(ref)
        temp = layout.temp_path(final)
        leftovers = [temp]
        try:
            mapping = await self._allocate(ref, temp, make_room)
            try:
                await self._fetch(ref, mapping)
            except BaseException:
                self._disk.post(files.unmap, mapping)
                raise
            header = layout.pack_header(ref, self._ledger.boot, self._ledger.run)
            leftovers.append(final)
            await self._disk.change(files.publish, mapping, header, temp, final)
        except BaseException:
            # runs after the jobs above in the disk thread, whether or not we saw them end
            self._disk.post(files.remove, *leftovers)
            raise

    async def _allocate(self, ref: ObjectRef, temp: Path, make_room: Callable[[DiskFull], bool]) -> mmap.mmap:
        size_bytes = layout.data_at(ref) + ref.size_bytes
        create = partial(files.create, temp, size_bytes, self._options.free_reserve_bytes)
        try:
            return await self._disk.change(create)
        except DiskFull as full:
            if not make_room(full):
                raise trouble.disk_full(full, self._options.directory) from full
        try:
            return await self._disk.change(create)
        except DiskFull as full:
            raise trouble.disk_full(full, self._options.directory) from full

    async def _fetch(self, ref: ObjectRef, mapping: mmap.mmap) -> None:
        if not ref.size_bytes:
            return  # no range of an empty object can be asked for
        target = memoryview(mapping)[layout.data_at(ref) :]
        try:
            await self._fetcher.fetch(ref, target)
        finally:
            # a failed fetch's traceback may still hold arrays over it; they end with the traceback
            with contextlib.suppress(BufferError):
                target.release()
