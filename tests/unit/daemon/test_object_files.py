"""Objects as files: folders without their contents, ranges from the cache or the store, within the owner's memory."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.access import AccessRules
from feedd.daemon import object_files
from feedd.daemon.object_files import WHOLE_BYTES_MAX, ReadObjects, _listed
from feedd.errors import BadRequest, ObjectChanged, PermissionDenied
from feedd.owner import Owner
from feedd.units import MIB
from feedd.values import ByteRange, ObjectRef
from tests.fakes.feeding import ROOT, Feeding, feeding
from tests.fakes.fetchers import until
from tests.fakes.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from feedd.serve.files_service import ListedName

ME = Owner.of_this_process()
LARGE = os.urandom(9 * MIB)


class _Pages(MemoryStore):
    """Counts pages."""

    def __init__(self, page_count: int) -> None:
        super().__init__(page_count=page_count)
        self.page_sizes: list[int] = []

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        async for page in super().list(prefix, start_after):
            self.page_sizes.append(len(page))
            yield page


async def _names(store: MemoryStore, prefix: str, *, recursive: bool = False) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []

    async def send(names: Sequence[ListedName]) -> None:
        found.extend((name.key, name.ref is None) for name in names)

    after: str | None = ""
    while after is not None:
        after = await _listed(store, prefix, after, send, recursive=recursive)
    return found


def _grouped(keys: set[str], prefix: str) -> list[tuple[str, bool]]:
    """Return what a listing with a delimiter gives."""
    rests = (key.removeprefix(prefix) for key in sorted(keys) if key.startswith(prefix))
    pairs = ((rest.partition("/")[0] + "/", True) if "/" in rest else (rest, False) for rest in rests)
    return [(f"{prefix}{name}", folder) for name, folder in dict.fromkeys(pairs)]


@given(
    keys=st.sets(st.text(alphabet="ab/0\U0010fffd", min_size=1, max_size=6), max_size=40),
    prefix=st.sampled_from(["", "a", "a/", "b/a/"]),
    page_count=st.integers(1, 5),
)
async def test_folders_are_named_once(keys: set[str], prefix: str, page_count: int) -> None:
    """As a listing with a delimiter names them, wherever pages end."""
    store = MemoryStore(page_count=page_count)
    for key in keys:
        store.put(key, b"x")
    before = object_files._PAGE_NAMES
    object_files._PAGE_NAMES = page_count  # type: ignore[misc]  # what a full page is
    try:
        assert await _names(store, prefix) == _grouped(keys, prefix)
        expected = [(key, False) for key in sorted(keys) if key.startswith(prefix)]
        assert await _names(store, prefix, recursive=True) == expected
    finally:
        object_files._PAGE_NAMES = before  # type: ignore[misc]  # see above


async def test_a_large_folder_is_not_listed_to_its_end() -> None:
    """One page of it is read, whatever is in it."""
    store = _Pages(1000)
    for number in range(5000):
        store.put(f"a/{number:04d}", b"x")
    for key in ("a0", "b"):  # the first key that no name of the folder can be
        store.put(key, b"x")
    assert await _names(store, "") == [("a/", True), ("a0", False), ("b", False)]
    assert store.page_sizes == [1000, 2]


def _reader(rig: Feeding, *rules: str) -> ReadObjects:
    return ReadObjects(rig.pipeline.stages.sources, rig.pipeline.cache, AccessRules(rules or None))


@pytest.mark.parametrize("recursive", [True, False])
async def test_names_next_to_a_permitted_folder_are_not_listed(tmp_path: Path, *, recursive: bool) -> None:
    """Their paths begin like the folder's, and another owner may have a rule for them."""
    for folder in ("a", "ab"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "x").touch()
    (tmp_path / "data" / "a.txt").touch()
    start = f"{tmp_path}/data/a"
    found: list[str] = []

    async def send(names: Sequence[ListedName]) -> None:
        found.extend(name.key for name in names)

    async with feeding(tmp_path / "feeding") as rig:
        await _reader(rig, f"file://{start}/").list(f"file://{start}", ME, send, recursive=recursive)
    assert found == [f"{start}/x" if recursive else f"{start}/"]


async def _bytes(reader: ReadObjects, ref: ObjectRef, start: int, end: int) -> bytes:
    found = bytearray()

    async def send(piece: memoryview) -> None:
        found.extend(piece)

    await reader.read((ref.url, ref.etag, ref.size_bytes), ME, ByteRange(start, end), send)
    return bytes(found)


async def test_ranges(tmp_path: Path) -> None:
    """A small object is fetched once, and then read from the cache. Of a large one, ranges are fetched, in order."""
    async with feeding(tmp_path) as rig:
        reader = _reader(rig)
        small, large = rig.store.put("small", LARGE[:100]), rig.store.put("large", LARGE)
        for _ in range(2):
            assert await _bytes(reader, small, 10, 90) == LARGE[10:90]
        assert await _bytes(reader, small, 5, 5) == b""
        assert rig.store.reads == ["small"]
        assert await _bytes(reader, large, 1, 9 * MIB - 1) == LARGE[1:-1]
        assert rig.store.reads[1:] == ["large"] * 3
        assert not rig.pipeline.cache.holds(large)
        (await rig.pipeline.cache.acquire([large])).release()
        rig.store.reads.clear()
        assert await _bytes(reader, large, 8 * MIB, 9 * MIB) == LARGE[8 * MIB :]
        assert not rig.store.reads
        assert (await reader.info(large.url, ME)) == large


async def test_a_cache_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the range then comes from the store; so does an object for which the cache has no room."""
    async with feeding(tmp_path) as rig:
        reader = _reader(rig)
        large = rig.store.put("large", LARGE)
        (await rig.pipeline.cache.acquire([large])).release()
        rig.store.reads.clear()
        read, calls = object_files._read_piece, 0

        def fail(fd: int, data_at: int, span: ByteRange) -> memoryview:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError(5, "input/output error")
            return read(fd, data_at, span)

        monkeypatch.setattr(object_files, "_read_piece", fail)
        assert await _bytes(reader, large, 0, 9 * MIB) == LARGE
        assert rig.store.reads == ["large"] * 2
        monkeypatch.undo()
        monkeypatch.setattr(object_files, "WHOLE_BYTES_MAX", 1 << 62)
        huge = rig.store.put("huge", os.urandom(80 * MIB))  # larger than the cache
        assert len(await _bytes(reader, huge, 5, MIB)) == MIB - 5


async def test_another_version_is_an_error(tmp_path: Path) -> None:
    """Neither the cache nor the store gives bytes of a version that was not asked for."""
    async with feeding(tmp_path) as rig:
        reader = _reader(rig)
        for size_bytes in (100, WHOLE_BYTES_MAX + 1):
            ref = rig.store.put("k", bytes(size_bytes))
            rig.store.put("k", b"x" * size_bytes)
            with pytest.raises(ObjectChanged):
                await _bytes(reader, ref, 0, 50)


async def test_an_owner_reads_what_the_rules_allow(tmp_path: Path) -> None:
    """Each call checks; a URL of many objects is none."""
    async with feeding(tmp_path) as rig:
        reader = _reader(rig, f"{ROOT}/yes/")
        yes, no = rig.store.put("yes/a", b"a"), rig.store.put("no", b"b")
        assert await _bytes(reader, yes, 0, 1) == b"a"

        async def send(_: object) -> None:
            raise AssertionError

        for refused in (
            reader.info(no.url, ME),
            _bytes(reader, no, 0, 1),
            reader.list(f"{ROOT}/", ME, send, recursive=True),
        ):
            with pytest.raises(PermissionDenied):
                await refused
        for url in (f"manifest+{ROOT}/yes/a", f"tar+{ROOT}/yes/a"):
            with pytest.raises(BadRequest):
                await reader.info(url, ME)


async def test_the_memory_of_an_owner_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four large reads at a time, each of four pieces; the others wait, and those of other owners do not."""
    monkeypatch.setattr(object_files, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(object_files, "_OWNER_BYTES_MAX", 16_000)
    async with feeding(tmp_path) as rig:
        reader = _reader(rig)
        ref = rig.store.put("k", LARGE)
        gate = rig.store.gates["k"] = asyncio.Event()
        reads = [asyncio.ensure_future(_bytes(reader, ref, 0, 32_000)) for _ in range(6)]
        await until(lambda: len(rig.store.reads) == 16)
        await asyncio.sleep(0.05)
        assert len(rig.store.reads) == 16

        async def send(_: object) -> None:
            pass

        version = (ref.url, ref.etag, ref.size_bytes)
        other = asyncio.ensure_future(reader.read(version, Owner("uid", "1"), ByteRange(0, 100), send))
        await until(lambda: len(rig.store.reads) == 17)
        gate.set()
        assert [len(found) for found in await asyncio.gather(*reads)] == [32_000] * 6
        await other
