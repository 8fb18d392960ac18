"""What the cache holds by folder: summed, bounded, and not at each look."""

from __future__ import annotations

from feedd.cache.report import CacheEntry
from feedd.daemon.cache_folders import FOLDERS_MAX, CacheFolders, summed
from feedd.serve.server_options import FolderRow
from tests.fakes.timeless import TimelessClock


def test_entries_are_summed_by_folder() -> None:
    """Bytes and entries by the part of the URL before the last slash, the largest first, pinned bytes apart."""
    entries = [
        CacheEntry("s3://b/train/1.tar", "e", 10, pins=1),
        CacheEntry("s3://b/train/2.tar", "e", 30),
        CacheEntry("s3://b/val/1.tar", "e", 100),
    ]
    assert summed(entries) == [FolderRow("s3://b/val/", 1, 100, 0), FolderRow("s3://b/train/", 2, 40, 10)]


def test_many_folders_end_in_one_row() -> None:
    """The smallest folders of many are one row without a URL, and nothing is lost."""
    rows = summed(CacheEntry(f"s3://b/{number}/x", "e", number) for number in range(1, 101))
    assert len(rows) == FOLDERS_MAX
    assert rows[-1].url == ""
    assert sum(row.size_bytes for row in rows) == sum(range(1, 101))
    assert sum(row.entry_count for row in rows) == 100


async def test_the_cache_is_walked_seldom() -> None:
    """Looks within some seconds get the same sums."""
    clock = TimelessClock()
    walks: list[int] = []

    def entries() -> list[CacheEntry]:
        walks.append(1)
        return [CacheEntry("s3://b/x", "e", len(walks))]

    folders = CacheFolders(entries, clock)
    assert [row.size_bytes for row in await folders.rows()] == [1]
    assert [row.size_bytes for row in await folders.rows()] == [1]
    await clock.sleep_s(6.0)
    assert [row.size_bytes for row in await folders.rows()] == [2]
