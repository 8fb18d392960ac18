"""Files of channels: all there or none half, whatever a run meets; the next run fetches what is missing only."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.errors import (
    BadRequest,
    CacheUnavailable,
    FeeddError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StoreUnavailable,
)
from feedd.file_mode.cached_entries import CachedEntries
from feedd.file_mode.channel_directory import ChannelDirectory
from feedd.file_mode.file_journal import FileJournal
from feedd.file_mode.file_paths import PARTIAL_FOLDER
from feedd.file_mode.files_run import FILES_IN_FLIGHT, SMALL_BYTES, ChannelFiles, FilesRun
from feedd.file_mode.root_lock import root_locked
from feedd.values import ByteRange
from tests.fakes.fetchers import MemoryFetcher, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.protocols import FetchWatch
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef


class _Fetcher(MemoryFetcher):
    """Notes which objects are verified."""

    def __init__(self) -> None:
        super().__init__()
        self.unverified: set[str] = set()

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Fetch the whole object."""
        assert list(spans) == [ByteRange(0, ref.size_bytes)]
        self.unverified.add(ref.key)
        await self.fetch(ref, sink, watch)

    async def matches(self, ref: ObjectRef, sink: RangeSink) -> bool:
        """Whether the sink has the object's bytes."""
        return b"".join(map(bytes, sink.read())) == self.data(ref)


class _Rig:
    """A channel over objects in memory, brought by as many runs as a test wants."""

    def __init__(self, root: Path, *, boot: str = "") -> None:
        self.fetcher = _Fetcher()
        self.directory = root / "data" / "train"
        self.wanted: dict[str, ObjectRef] = {}
        self._root = root
        self.boot = boot

    def put(self, path: str, data: bytes, etag: str = "v1") -> ObjectRef:
        """Store an object that the node reads."""
        self.wanted[path] = self.fetcher.put(f"train/{path}", data, etag)
        return self.wanted[path]

    def channel(self, *, folder: bool = True) -> ChannelFiles:
        """Return the channel for another run."""
        if folder:
            self._root.mkdir(exist_ok=True)
        journal = FileJournal(self._root / "train.files", self.boot or "boot")
        return ChannelFiles("train", ChannelDirectory(self.directory, journal), dict(self.wanted))

    async def run(self) -> ChannelFiles:
        """Bring the files."""
        self.fetcher.calls.clear()
        channel = self.channel()
        await FilesRun(self.fetcher, CachedEntries([])).run([channel])
        return channel

    def files(self) -> dict[str, bytes]:
        """Return everything below the directory, hidden files included."""
        found = (path for path in self.directory.rglob("*") if not path.is_dir())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


@pytest.fixture
def rig(tmp_path: Path) -> _Rig:
    """Three objects."""
    rig = _Rig(tmp_path / "root")
    for path, data in {"a": b"1" * 1000, "deep/er/b": b"22", "deep/empty": b""}.items():
        rig.put(path, data)
    return rig


WHOLE = {"a": b"1" * 1000, "deep/er/b": b"22", "deep/empty": b""}


async def test_a_second_run_fetches_nothing(rig: _Rig) -> None:
    """The first leaves the files and nothing else."""
    channel = await rig.run()
    assert rig.files() == WHOLE
    assert (channel.fetched_count, channel.fetched_bytes, channel.is_whole) == (3, 1002, True)
    assert not (rig.directory / PARTIAL_FOLDER).exists()
    channel = await rig.run()
    assert (channel.present_count, channel.present_bytes, channel.fetched_count) == (3, 1002, 0)
    assert not rig.fetcher.calls
    assert channel.done_bytes == channel.total_bytes == 1002


async def test_small_objects_cost_no_request_for_a_checksum(rig: _Rig) -> None:
    """As in packs; all others are verified."""
    rig.put("almost", bytes(SMALL_BYTES - 1))
    rig.put("large", bytes(SMALL_BYTES))
    await rig.run()
    assert set(rig.fetcher.calls) - rig.fetcher.unverified == {"train/large"}


async def test_changed_and_missing_objects_only(rig: _Rig) -> None:
    """Another version, a file that was removed, one that was written to, and one that was replaced: fetched again."""
    rig.put("same", b"7")
    await rig.run()
    rig.put("a", b"0" * 1000, "v2")
    (rig.directory / "deep/empty").unlink()
    (rig.directory / "deep/er/b").write_bytes(b"33")
    channel = await rig.run()
    assert set(rig.fetcher.calls) == {"train/a", "train/deep/empty", "train/deep/er/b"}
    assert rig.files() == {**WHOLE, "a": b"0" * 1000, "same": b"7"}
    assert (channel.present_count, channel.fetched_count) == (1, 3)
    twin = rig.directory / "twin"
    shutil.copy2(rig.directory / "same", twin)  # of the same size and time
    twin.replace(rig.directory / "same")
    assert (await rig.run()).fetched_count == 1


async def test_what_no_longer_belongs_to_the_node_goes(rig: _Rig) -> None:
    """With its folder, if that is then empty; a folder may become a file."""
    await rig.run()
    del rig.wanted["deep/er/b"], rig.wanted["deep/empty"]
    rig.put("deep", b"file")
    channel = await rig.run()
    assert channel.removed_count == 2
    assert rig.files() == {"a": b"1" * 1000, "deep": b"file"}
    del rig.wanted["deep"]
    rig.put("deep/er/b", b"22")
    assert (await rig.run()).removed_count == 1
    assert rig.files() == {"a": b"1" * 1000, "deep/er/b": b"22"}


@pytest.mark.parametrize("other", ["notes.txt", "deep/x", "link"])
async def test_other_files_in_the_directory_are_an_error(rig: _Rig, other: str) -> None:
    """Training would read them as data. Nothing is fetched and nothing removed; ``lost+found`` is no data."""
    (rig.directory / "lost+found").mkdir(parents=True)
    (rig.directory / "lost+found" / "#1").touch()
    (rig.directory / other).parent.mkdir(exist_ok=True)
    if other == "link":
        (rig.directory / other).symlink_to("/")
    else:
        (rig.directory / other).touch()
    with pytest.raises(BadRequest, match=rf"got also {other} \[") as refused:
        await rig.run()
    assert refused.value.object == str(rig.directory)
    assert not rig.fetcher.calls


async def test_a_link_in_place_of_a_folder_is_not_followed(rig: _Rig, tmp_path: Path) -> None:
    """No file is written outside of the directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    rig.directory.mkdir(parents=True)
    (rig.directory / "deep").symlink_to(outside)
    with pytest.raises(BadRequest, match="got also deep"):
        await rig.run()
    (rig.directory / "deep").unlink()
    (rig.directory / "a").symlink_to(outside / "a")  # of the file itself, the link is replaced
    assert (await rig.run()).is_whole
    assert not list(outside.iterdir())
    assert rig.files() == WHOLE


async def test_a_file_that_is_not_whole_has_no_name(rig: _Rig) -> None:
    """While it is fetched, after a cancellation, and after a kill, whose leftovers the next run removes."""
    rig.fetcher.hold(rig.wanted["a"])
    channel = rig.channel()
    running = asyncio.ensure_future(FilesRun(rig.fetcher, CachedEntries([])).run([channel]))
    await until(lambda: channel.done_count == 2)
    assert {name for name in rig.files() if not name.startswith(PARTIAL_FOLDER)} == {"deep/er/b", "deep/empty"}
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    assert not channel.is_whole
    assert rig.files() == {path: WHOLE[path] for path in ("deep/er/b", "deep/empty")}
    (rig.directory / PARTIAL_FOLDER).mkdir()
    (rig.directory / PARTIAL_FOLDER / "left").write_bytes(b"1" * 500)
    rig.fetcher.release(rig.wanted["a"])
    await rig.run()
    assert set(rig.fetcher.calls) == {"train/a"}
    assert rig.files() == WHOLE


async def test_one_bad_object_does_not_stop_the_others(rig: _Rig) -> None:
    """The error names it; the next run tries it again."""
    rig.fetcher.fail(rig.wanted["a"], NotFound("gone", stage="source"))
    channel = await rig.run()
    assert [(one.kind, one.object) for one in channel.failures] == [("not-found", "s3://bucket/train/a")]
    assert not channel.is_whole
    assert rig.files() == {path: WHOLE[path] for path in ("deep/er/b", "deep/empty")}
    assert (await rig.run()).is_whole
    assert rig.files() == WHOLE


async def test_many_bad_objects_stop_the_run(tmp_path: Path) -> None:
    """A store that is down is not asked for a million objects."""
    rig = _Rig(tmp_path / "root")
    for number in range(4 * FILES_IN_FLIGHT):
        rig.fetcher.fail(rig.put(str(number), b"x"), StoreUnavailable("down"))
    channel = await rig.run()
    assert 8 <= len(channel.failures) < 2 * FILES_IN_FLIGHT
    assert rig.files() == {}


async def test_a_disk_without_room(rig: _Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known in advance where the system tells, else the run stops at the first file; what is whole stays."""
    rig.wanted["huge"] = replace(rig.put("huge", b""), size_bytes=1 << 62)
    with pytest.raises(ResourceExhausted, match="free bytes for the missing files"):
        await rig.run()
    assert not rig.fetcher.calls
    del rig.wanted["huge"]
    allocate = os.posix_fallocate

    def full(fd: int, offset: int, size_bytes: int) -> None:
        if size_bytes == 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, size_bytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceExhausted, match="no space left") as stopped:
        await rig.run()
    assert stopped.value.object == str(rig.directory / "a")
    assert "a" not in rig.files()
    assert not (rig.directory / PARTIAL_FOLDER).exists()
    monkeypatch.undo()
    await rig.run()
    assert rig.files() == WHOLE


async def test_room_is_counted_for_all_channels(rig: _Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two channels of one disk need room together, before the first file; replaced and removed files give room."""
    space = os.statvfs(rig.directory.parents[2])
    monkeypatch.setattr(os, "statvfs", lambda _: type(space)((1, 1, *[1500] * 8)))
    channels = [
        rig.channel(),
        ChannelFiles(
            "b", ChannelDirectory(rig.directory.parent / "b", FileJournal(rig.directory.parent / "j")), dict(rig.wanted)
        ),
    ]
    with pytest.raises(ResourceExhausted, match="expected 2004 free bytes for the missing files, got 1500"):
        await FilesRun(rig.fetcher, CachedEntries([])).run(channels)
    await rig.run()
    for path, data in WHOLE.items():
        rig.put(path, data * 2, "v2")
    assert (await rig.run()).fetched_count == 3


async def test_a_disk_that_refuses_bytes(rig: _Rig) -> None:
    """The error speaks of the file, not of the cache, and names it."""
    rig.fetcher.fail(rig.wanted["a"], CacheUnavailable("the received bytes cannot be written: input/output error"))
    channel = await rig.run()
    assert [one.object for one in channel.failures] == [str(rig.directory / "a")]
    assert "cache" not in str(channel.failures[0])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.EDQUOT, ResourceExhausted),
        (errno.EIO, StoreUnavailable),
    ],
)
async def test_a_system_that_refuses(
    rig: _Rig, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[FeeddError]
) -> None:
    """The error tells what to do about it, and names the directory or file."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match="name another --root") as refused:
        await FilesRun(rig.fetcher, CachedEntries([])).run([rig.channel(folder=False)])
    assert refused.value.object == str(rig.directory)


async def test_a_file_in_place_of_the_directory(rig: _Rig) -> None:
    """The error names it and says what to do."""
    rig.directory.parent.mkdir(parents=True)
    rig.directory.touch()
    with pytest.raises(StoreUnavailable, match="in the way") as refused:
        await rig.run()
    assert refused.value.object == str(rig.directory)


async def test_after_a_power_cut(tmp_path: Path) -> None:
    """Files of a stopped run may be without bytes then, and are fetched again; those of a complete run were flushed."""
    rig = _Rig(tmp_path / "root")
    rig.put("a", b"1")
    await rig.run()
    rig.fetcher.fail(rig.put("bad", b"x"), NotFound("gone"))
    rig.put("b", b"2")
    await rig.run()
    rig.boot = "after"
    await rig.run()
    assert set(rig.fetcher.calls) == {"train/b", "train/bad"}


@pytest.mark.parametrize("case", ["mode", "link", "owner"])
def test_records_that_others_may_write_are_refused(tmp_path: Path, case: str) -> None:
    """They say which files are whole, so their writer could pass off files of his own as data."""
    folder = tmp_path / "input" / ".feedd"
    folder.mkdir(parents=True)
    if case == "mode":
        folder.chmod(0o777)
    elif case == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif os.geteuid():
        pytest.skip("needs root, who gives folders away")
    else:
        os.chown(folder, 2000, 2000)
    with pytest.raises(PermissionDenied, match="that only user") as refused, root_locked(folder):
        pytest.fail("entered")
    assert refused.value.object == str(folder)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A second one says so; the lock ends with its owner."""
    with (
        root_locked(tmp_path / "x"),
        pytest.raises(ResourceExhausted, match="only feedd files"),
        root_locked(tmp_path / "x"),
    ):
        pass
    with root_locked(tmp_path / "x"):
        pass
