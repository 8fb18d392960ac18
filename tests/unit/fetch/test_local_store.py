"""Local files: order, links, change detection."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadResponse, CacheUnavailable, NotFound, ObjectChanged, StoreUnavailable
from feedd.fetch.local_store import Anywhere, LocalStore, write_file
from feedd.flow import mounts
from feedd.flow.range_sinks import FileSink
from feedd.values import ByteRange, ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.sinks import content, into, memory_sink_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
async def store() -> AsyncIterator[LocalStore]:
    """Open a store with two threads."""
    opened = LocalStore(2)
    yield opened
    await opened.close()


async def _names(store: LocalStore, top: Path, prefix: str = "/", after: str = "") -> list[str]:
    refs = [ref async for page in store.list(f"{top}{prefix}", after) for ref in page]
    return [ref.key.removeprefix(f"{top}/") for ref in refs]


async def test_order_is_that_of_whole_paths(store: LocalStore, tmp_path: Path) -> None:
    """``a-b`` sorts before ``a/b`` before ``a0``, as a bucket would list them."""
    for name in ("a/b", "a-b", "a0", "a.x/c", "a/b.d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    names = ["a-b", "a.x/c", "a/b", "a/b.d/e", "a0"]
    assert names == sorted(names)
    assert await _names(store, tmp_path) == names
    for index, name in enumerate(names):
        assert await _names(store, tmp_path, after=f"{tmp_path}/{name}") == names[index + 1 :]
    assert await _names(store, tmp_path, prefix="/a/b") == ["a/b", "a/b.d/e"]


async def test_links_are_followed_once(store: LocalStore, tmp_path: Path) -> None:
    """Links to files and directories count; loops end; dangling links and pipes do not count."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/loop").symlink_to("..")
    (tmp_path / "file").symlink_to("real/x")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert await _names(store, tmp_path) == ["file", "link/x", "real/x"]


async def test_rewritten_in_place_is_changed(store: LocalStore, tmp_path: Path) -> None:
    """A file written again with the same size is another version."""
    path = tmp_path / "x"
    path.write_bytes(b"11111")
    ref = await store.head(str(path))
    path.write_bytes(b"22222")
    os.utime(path, ns=(0, 12345))
    with pytest.raises(ObjectChanged, match=ref.etag):
        await store.read_into(ref, ByteRange(0, 5), into(bytearray(5)))


async def test_range_beyond_the_end(store: LocalStore, tmp_path: Path) -> None:
    """A range that the file does not have is BadResponse, not zeros."""
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    ref = await store.head(str(path))
    with pytest.raises(BadResponse, match="got 2"):
        await store.read_into(ref, ByteRange(3, 9), into(bytearray(6)))


async def test_directory_is_no_object(store: LocalStore, tmp_path: Path) -> None:
    """A directory cannot be asked for as an object."""
    with pytest.raises(NotFound, match="regular file"):
        await store.head(str(tmp_path))
    with pytest.raises(NotFound):
        await store.read_into(ObjectRef("file://", str(tmp_path / "none"), 1, "e"), ByteRange(0, 1), into(bytearray(1)))


def test_a_draft_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a link is planted in the draft's place it is not followed: nothing else is written."""
    victim, path = tmp_path / "victim", tmp_path / "index"
    victim.write_bytes(b"mine")
    (tmp_path / f"index.{os.getpid()}.{threading.get_ident()}.new").symlink_to(victim)
    write_file(str(path), b"x")
    assert (victim.read_bytes(), path.read_bytes()) == (b"mine", b"x")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0")
    (tmp_path / "index.0.new").symlink_to(victim)
    with pytest.raises(StoreUnavailable):
        write_file(str(path), b"y")
    assert (victim.read_bytes(), path.read_bytes()) == (b"mine", b"x")


def test_only_the_version_that_was_meant_is_replaced(tmp_path: Path) -> None:
    """A file that came, went or changed meanwhile stays as it is, and no draft is left."""
    path = str(tmp_path / "file")
    with pytest.raises(ObjectChanged, match="expected version 1-2-3, got none"):
        write_file(path, b"x", "1-2-3")
    first = write_file(path, b"first", "")
    with pytest.raises(ObjectChanged, match="expected version none, got"):
        write_file(path, b"x", "")
    second = write_file(path, b"second", first.etag)
    with pytest.raises(ObjectChanged):
        write_file(path, b"x", first.etag)
    assert (first.size_bytes, second.size_bytes) == (5, 6)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"second")]
    write_file(path, b"whatever")
    with pytest.raises(NotFound):
        write_file(str(tmp_path / "nowhere" / "file"), b"x", "")


async def test_each_piece_is_told_where_it_was_written(store: LocalStore, tmp_path: Path) -> None:
    """A file read into a file comes in pieces of 256 KiB; each is told by its place in the file.

    Pieces are summed as they are written: with another place, a sound block would look damaged and be fetched again.
    """
    at, data = 4096, os.urandom(600_000)
    source = tmp_path / "source"
    source.write_bytes(data)
    told: list[tuple[int, bytes, bool]] = []

    def note(at: int, data: memoryview, *, begins: bool = False) -> None:
        told.append((at, bytes(data), begins))

    ref = (await anext(store.list(str(source), "")))[0]
    assert ref.size_bytes == source.stat().st_size
    with memory_sink_file(at + len(data)) as file:
        sink = FileSink(file, at, len(data), note)
        await store.read_into(ref, ByteRange(0, len(data)), sink)
        assert content(sink) == data
    assert [begins for *_, begins in told] == [True, False, False]
    assert [start for start, *_ in told] == [at, at + (256 << 10), at + (512 << 10)]
    assert b"".join(piece for _, piece, _ in told) == data


@pytest.mark.parametrize("spliced", [True, False])
async def test_a_range_lands_in_its_place(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spliced: bool
) -> None:
    """Bytes that nobody needs to see are copied inside the kernel, or read if the file system has no such call."""
    at, low, data = 4096, 1000, os.urandom(2_600_000)
    source = tmp_path / "source"
    source.write_bytes(data)
    calls: list[int] = []

    def splice(*args: int, **named: int) -> int:
        calls.append(1)
        if not spliced:
            raise OSError(errno.EINVAL, "no such call")
        return own(*args, **named)

    own = os.splice
    monkeypatch.setattr(os, "splice", splice)
    (ref,) = await anext(store.list(str(source), ""))
    with memory_sink_file(at + len(data)) as file:
        sink = FileSink(file, at, len(data) - low)
        await store.read_into(ref, ByteRange(low, len(data)), sink)
        assert content(sink) == data[low:]
    assert calls, "no byte was copied inside the kernel"


async def test_a_file_that_takes_no_byte_is_the_caches_error(store: LocalStore, tmp_path: Path) -> None:
    """A cache without space is told from a source that cannot be read."""
    source = tmp_path / "source"
    source.write_bytes(bytes(100_000))
    (ref,) = await anext(store.list(str(source), ""))
    with memory_sink_file(100_000) as file:
        fcntl.fcntl(file.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(CacheUnavailable, match="the cache file cannot be written"):
            await store.read_into(ref, ByteRange(0, 100_000), FileSink(file, 0, 100_000))


class _Hanging(Anywhere):
    """Opens nothing below a folder until told so, as a mount whose server is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.answer = threading.Event()
        self.waiting = threading.Semaphore(0)

    def open(self, path: str) -> int:
        self._wait(path)
        return super().open(path)

    def status(self, path: str) -> os.stat_result:
        self._wait(path)
        return super().status(path)

    def _wait(self, path: str) -> None:
        if path.startswith(self.folder):
            self.waiting.release()
            assert self.answer.wait(PATIENT_S)


@pytest.fixture
def hanging(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hanging]:
    """Make ``dead`` a mount that does not answer."""
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead/x").write_bytes(b"dead")
    (tmp_path / "alive").write_bytes(b"alive")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:4 / {tmp_path}/dead rw - nfs4 gone:/ rw\n")
    monkeypatch.setattr(mounts, "_TABLE", table)
    tree = _Hanging(tmp_path / "dead")
    monkeypatch.setattr(store, "_tree", tree)
    yield tree
    tree.answer.set()


async def test_a_dead_mount_stops_no_other(store: LocalStore, tmp_path: Path, hanging: _Hanging) -> None:
    """With all threads of a mount in calls that hang, files of other mounts are read."""
    stuck = [asyncio.ensure_future(store.head(f"{tmp_path}/dead/x")) for _ in range(3)]
    async with asyncio.timeout(PATIENT_S):
        assert await asyncio.to_thread(hanging.waiting.acquire, timeout=10)
        ref = await store.head(f"{tmp_path}/alive")
        target = bytearray(5)
        await store.read_into(ref, ByteRange(0, 5), into(memoryview(target)))
    assert target == b"alive"
    assert not any(task.done() for task in stuck)
    hanging.answer.set()
    assert [ref.size_bytes for ref in await asyncio.gather(*stuck)] == [4, 4, 4]


async def test_a_read_that_hangs_gives_its_memory_back(store: LocalStore, tmp_path: Path, hanging: _Hanging) -> None:
    """A cancelled read returns at once, and its thread writes nothing once the file answers."""
    hanging.answer.set()
    ref = await store.head(f"{tmp_path}/dead/x")
    hanging.answer.clear()
    target = bytearray(4)
    view = memoryview(target)
    while hanging.waiting.acquire(blocking=False):
        pass
    task = asyncio.ensure_future(store.read_into(ref, ByteRange(0, 4), into(view)))
    assert await asyncio.to_thread(hanging.waiting.acquire, timeout=10)
    task.cancel()
    async with asyncio.timeout(PATIENT_S):
        with pytest.raises(asyncio.CancelledError):
            await task
    view.release()
    kept = bytes(target)
    target.clear()  # raises BufferError while the thread holds the memory
    hanging.answer.set()
    assert (await store.head(f"{tmp_path}/dead/x")).size_bytes == 4
    assert kept == bytes(4)
