"""Copies out of a daemon's cache: the object's bytes, or nothing."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.entry_layout import file_path
from feedd.cache.options import CacheOptions
from feedd.clock import SystemClock
from feedd.file_mode.cached_entries import CachedEntries
from feedd.units import MIB
from feedd.values import ObjectRef
from tests.fakes.fetchers import MemoryFetcher
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = os.urandom(2 * MIB + 17)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    """An empty file."""
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


async def _cached(directory: Path, data: bytes = DATA) -> ObjectRef:
    """Return an object that a cache has."""
    fetcher = MemoryFetcher()
    ref = fetcher.put("a", data)
    options = CacheOptions(directory=directory, size_bytes=64 * MIB, free_reserve_bytes=0)
    async with Cache(options, fetcher, TallyRecorder(), SystemClock()) as cache:
        (await cache.acquire([ref])).release()
    return ref


async def test_an_entry_is_copied(tmp_path: Path, target: int) -> None:
    """Without its header, from whichever directory has it; an object that no directory has is not."""
    ref = await _cached(tmp_path / "two")
    await _cached(tmp_path / "one", b"other")
    entries = CachedEntries([tmp_path / "none", tmp_path / "one", tmp_path / "two"])
    assert entries.copy(ref, target, threading.Event())
    assert os.pread(target, len(DATA) + 1, 0) == DATA
    for other in (("s3://other", "a", len(DATA), "v1"), (ref.root, "a", len(DATA), "v2")):
        assert not entries.copy(ObjectRef(*other), target, threading.Event())


@pytest.mark.parametrize("at", [0, 100, 5000, -1])
async def test_a_damaged_entry_is_not_copied(tmp_path: Path, target: int, at: int) -> None:
    """A bit of the header, or of any block; a file that is too short; a file of another object."""
    ref = await _cached(tmp_path)
    path = file_path(tmp_path, ref)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    entries = CachedEntries([tmp_path])
    assert not entries.copy(ref, target, threading.Event())
    path.write_bytes(content[:-MIB])
    assert not entries.copy(ref, target, threading.Event())


async def test_an_entry_under_another_name_is_not_copied(tmp_path: Path, target: int) -> None:
    """The header says which object it is."""
    ref = await _cached(tmp_path)
    wanted = ObjectRef(ref.root, "b", ref.size_bytes, ref.etag)
    path = file_path(tmp_path, wanted)
    path.parent.mkdir(exist_ok=True)
    file_path(tmp_path, ref).rename(path)
    assert not CachedEntries([tmp_path]).copy(wanted, target, threading.Event())


@pytest.mark.parametrize("mode", [0o757, 0o777])
async def test_a_directory_that_others_may_write_to_is_not_used(tmp_path: Path, target: int, mode: int) -> None:
    """The caller learns which directory and why, and nothing is copied from it."""
    ref = await _cached(tmp_path / "cache")
    (tmp_path / "cache").chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    entries = CachedEntries([tmp_path / "cache", tmp_path / "link", tmp_path / "none"])
    assert [one.object for one in entries.refused] == [str(tmp_path / "cache"), str(tmp_path / "link")]
    assert not entries.copy(ref, target, threading.Event())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who gives files away")
async def test_a_directory_of_another_user_is_not_used(tmp_path: Path, target: int) -> None:
    """Its owner could have planted any bytes, with checksums that match."""
    ref = await _cached(tmp_path / "cache")
    os.chown(tmp_path / "cache", 2000, 2000)
    entries = CachedEntries([tmp_path / "cache"])
    assert "one of user 2000" in entries.refused[0].message
    assert not entries.copy(ref, target, threading.Event())


async def test_a_copy_that_nobody_wants_any_more_ends(tmp_path: Path, target: int) -> None:
    """A cancelled run does not wait for a large copy."""
    ref = await _cached(tmp_path)
    stop = threading.Event()
    stop.set()
    assert not CachedEntries([tmp_path]).copy(ref, target, stop)
    assert os.fstat(target).st_size == MIB
