"""A fill whose bytes have come, while somebody may still write to its file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.cache import fills
from feedd.errors import CacheUnavailable
from feedd.flow.range_sinks import FileSink
from tests.fakes.caches import CacheRig, read
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.flow.file_writers import Writers
    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef


class _LateFetcher:
    """Brings all bytes, and leaves one write to each file under way, as the slower of two requests does."""

    def __init__(self, rig: CacheRig) -> None:
        self._inner = rig.fetcher
        self.late: list[Writers] = []

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        await self._inner.fetch(ref, sink, watch)
        assert isinstance(sink, FileSink)
        sink.file.writers.begin()
        self.late.append(sink.file.writers)


async def test_nobody_reads_a_file_that_is_still_written(tmp_path: Path) -> None:
    """A shard is given to readers when the last write to its file has ended, and not before."""
    rig = CacheRig(tmp_path)
    (ref,) = rig.shards(1)
    data = rig.fetcher.data(ref)
    late = _LateFetcher(rig)
    rig.fetcher = late  # type: ignore[assignment]  # what a cache wants of one
    async with rig.open() as cache:
        acquiring = asyncio.ensure_future(cache.acquire([ref]))
        await until(lambda: bool(late.late))
        for _ in range(100):
            await asyncio.sleep(0.0001)
        assert not acquiring.done()
        late.late[0].end()
        with await acquiring as pins:
            assert read(pins.files[0]) == data


async def test_a_disk_that_never_takes_it_is_the_caches_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that does not end within the deadline ends the fill, and leaves no file behind."""
    monkeypatch.setattr(fills, "_WRITTEN_S", 0.01)
    rig = CacheRig(tmp_path)
    (ref,) = rig.shards(1)
    late = _LateFetcher(rig)
    rig.fetcher = late  # type: ignore[assignment]  # what a cache wants of one
    async with rig.open() as cache:
        with pytest.raises(CacheUnavailable, match="the disk has not answered"):
            await cache.acquire([ref])
        late.late[0].end()
        await until(lambda: not rig.temp_files())
