"""Evicted files written over by the next fills: their pages are used again, nobody's bytes change under him."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.cache.directory import Spares
from feedd.flow.range_sinks import FileSink
from tests.fakes.caches import PAGE, CacheRig
from tests.fakes.fetchers import until
from tests.fakes.next_uses import note_next_use

if TYPE_CHECKING:
    from pathlib import Path


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
