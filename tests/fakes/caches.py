"""A disk cache with everything around it that a test wants to look at."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.cache.cache import Cache
from feedd.cache.memory import MemoryStorage
from feedd.cache.options import CacheOptions
from feedd.cache.prefetch import PrefetchLimits
from feedd.flow.memory import available_bytes
from feedd.metrics import CACHE_BYTES, CACHE_ENTRIES, CACHE_PINS, CACHE_RESERVED
from tests.fakes.fetchers import MemoryFetcher
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from feedd.protocols import Clock, PinnedShards, Recorder, ShardFetcher
    from feedd.values import ObjectRef, ShardFile

PAGE = entry_layout.PAGE_BYTES
SHARD_BYTES = 4 * PAGE  # of data; a header page comes on top
SLOT_BYTES = SHARD_BYTES + PAGE
MEMORY_FOLDER = Path("/dev/shm")


@dataclass
class CacheRig:
    """Opens caches on one directory and knows what the objects are."""

    directory: Path
    fetcher: MemoryFetcher = field(default_factory=MemoryFetcher)
    recorder: TallyRecorder = field(default_factory=TallyRecorder)
    clock: TimelessClock = field(default_factory=TimelessClock)
    in_memory: bool = False
    bypass_bytes: int = 0

    def shard(self, name: str, size_bytes: int = SHARD_BYTES, etag: str = "v1") -> ObjectRef:
        """Store an object of bytes that tell it from all others."""
        pattern = f"{name}/{etag}/".encode()
        data = (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]
        return self.fetcher.put(name, data, etag)

    def shards(self, count: int) -> list[ObjectRef]:
        """Store ``count`` objects of one size."""
        return [self.shard(f"shard-{index:03d}") for index in range(count)]

    def options(self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0) -> CacheOptions:
        """Options of a cache with room for ``capacity`` shards of the default size."""
        return CacheOptions(
            directory=self.directory,
            size_bytes=int(capacity * SLOT_BYTES),
            free_reserve_bytes=0,
            fill_deadline_s=deadline_s,
            prefetching=PrefetchLimits(prefetch_fills),
            bypass_bytes=self.bypass_bytes,
        )

    @contextlib.asynccontextmanager
    async def open(
        self, capacity: float = 100, prefetch_fills: int = 4, deadline_s: float = 60.0
    ) -> AsyncIterator[Cache]:
        """Open a cache; after it nothing is held and no unfinished file is left."""
        options = self.options(capacity, prefetch_fills, deadline_s)
        async with self.made(options) as cache:
            yield cache
        assert self.recorder.total(CACHE_PINS) == 0
        assert self.recorder.total(CACHE_RESERVED) == 0
        assert self.recorder.total(CACHE_BYTES) == self.recorder.total(CACHE_ENTRIES) == 0
        assert cache.stats.committed_bytes <= options.size_bytes + options.bypass_bytes
        assert len(cache.entries()) == cache.stats.entry_count
        assert not self.temp_files()
        assert self.disk_bytes() <= options.size_bytes

    def made(self, options: CacheOptions) -> Cache:
        """Make a cache; not open yet."""
        if self.in_memory:
            storage = MemoryStorage(options.size_bytes)
            return Cache(options, self.fetcher, self.recorder, self.clock, storage=storage)
        return Cache(options, self.fetcher, self.recorder, self.clock)

    def check(self, pins: PinnedShards, refs: list[ObjectRef]) -> None:
        """The files are those of ``refs`` and hold their bytes."""
        assert [file.ref for file in pins.files] == refs
        for file in pins.files:
            assert read(file) == self.fetcher.data(file.ref)

    def entry_files(self) -> list[Path]:
        """Entry files on disk."""
        return sorted(self.directory.rglob("*.shard"))

    def temp_files(self) -> list[Path]:
        """Unfinished fills on disk."""
        return [path for path in self.directory.rglob("*") if entry_layout.is_temp_name(path.name)]

    def disk_bytes(self) -> int:
        """What entries and unfinished fills take on disk, in whole pages, all at one moment.

        A file that is renamed into another folder during one look may be seen twice; what two looks in a row agree on
        was there between them.
        """
        seen = self._disk_files()
        for _ in range(1000):
            before, seen = seen, self._disk_files()
            if seen == before:
                return sum(seen.values())
        raise AssertionError(f"expected files that come to rest, got 1,000 looks that differ in {self.directory}")

    def _disk_files(self) -> dict[tuple[Path, int], int]:
        found = {}
        for folder, _, names in os.walk(self.directory / entry_layout.FORMAT_FOLDER):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # removed between listing and looking
                    status = path.stat()
                    found[path, status.st_ino] = -(-status.st_size // PAGE) * PAGE
        return found


def memory_cache(
    size_bytes: int,
    fetcher: ShardFetcher,
    recorder: Recorder,
    clock: Clock,
    available: Callable[[], int | None] = available_bytes,
) -> Cache:
    """Return a cache in anonymous memory alone; not open yet."""
    options = CacheOptions(Path(os.devnull), size_bytes)
    return Cache(options, fetcher, recorder, clock, storage=MemoryStorage(size_bytes, available))


def read(file: ShardFile) -> bytes:
    """Read a shard the way a decode worker finds it."""
    with Path(file.path).open("rb") as stream:
        stream.seek(file.data_at)
        return stream.read()


@contextlib.contextmanager
def rig_on(place: str, tmp_path: Path) -> Iterator[CacheRig]:
    """Yield a rig on the file system of ``tmp_path`` ("disk", or below memory), on tmpfs, or in anonymous memory."""
    if place in {"disk", "memory"}:
        yield CacheRig(tmp_path / "cache", in_memory=place == "memory")
        return
    if place == "bypass":
        from tests.fakes.bypass import PATIENT, BypassRig  # noqa: PLC0415 - built on this module

        yield BypassRig(tmp_path / "cache", health=PATIENT)
        return
    if place in {"passed", "made"}:
        from tests.fakes.forms import FORM, MadeRig, same_form  # noqa: PLC0415 - likewise

        with same_form():
            yield MadeRig(tmp_path / "cache", conversion=FORM if place == "made" else "")
        return
    if not MEMORY_FOLDER.is_dir():
        pytest.skip(f"needs a tmpfs at {MEMORY_FOLDER}")
    with tempfile.TemporaryDirectory(prefix="feedd-test-", dir=MEMORY_FOLDER) as folder:
        yield CacheRig(Path(folder) / "cache")
