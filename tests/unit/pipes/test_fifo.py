"""One FIFO, and a reader that opens and closes it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadRequest
from feedd.pipes.fifo import PIPE_BYTES, Fifo, ReaderClosed
from feedd.pipes.fifo_events import FifoEvents
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def fifo(tmp_path: Path) -> AsyncIterator[Fifo]:
    """A FIFO that nobody has opened."""
    with FifoEvents() as events:
        found = Fifo(tmp_path / "train_0", events, lambda: None).make()
        yield found
        found.close()
    assert not os.listdir(tmp_path)  # noqa: PTH208 - pathlib may block, says the linter


def _open(fifo: Fifo) -> int:
    return os.open(fifo.path, os.O_RDONLY | os.O_NONBLOCK)


async def _opened(fifo: Fifo) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not fifo.is_opened:  # noqa: ASYNC110 - the event belongs to the FIFO
            await asyncio.sleep(0.001)


async def test_no_false_end_of_file(fifo: Fifo) -> None:
    """A reader that does not block finds no data yet, and not the end."""
    assert not fifo.is_opened
    fd = _open(fifo)
    with pytest.raises(BlockingIOError):
        os.read(fd, 1)
    await _opened(fifo)
    assert fifo.has_reader
    os.close(fd)
    assert not fifo.has_reader


async def test_bytes_that_nobody_took_wait_for_the_next_reader(fifo: Fifo) -> None:
    """The writer does not close the FIFO while its bytes have no reader."""
    fd = _open(fifo)
    await _opened(fifo)
    await fifo.write(memoryview(b"abc"))
    os.close(fd)
    finish = asyncio.create_task(fifo.finish())
    await asyncio.sleep(0.02)
    assert not finish.done()
    fd = _open(fifo)
    await asyncio.wait_for(finish, PATIENT_S)
    fifo.close()
    assert (os.read(fd, 10), os.read(fd, 10)) == (b"abc", b"")
    os.close(fd)


async def test_a_reader_that_had_enough(fifo: Fifo) -> None:
    """Once it has taken a byte, its end is the end, also for a writer that waits for room."""
    fd = _open(fifo)
    await _opened(fifo)
    write = asyncio.create_task(fifo.write(memoryview(bytes(2 * PIPE_BYTES))))
    await asyncio.sleep(0.02)
    assert len(os.read(fd, 10)) == 10
    assert not write.done()
    os.close(fd)
    with pytest.raises(ReaderClosed):
        await asyncio.wait_for(write, PATIENT_S)
    assert fifo.taken_bytes == 10


async def test_memory_files_are_spliced(fifo: Fifo) -> None:
    """All bytes, in pieces as the reader takes them."""
    data = os.urandom(3_000_000)
    file = os.memfd_create("test")
    os.write(file, data)
    reader = asyncio.create_task(asyncio.to_thread(fifo.path.read_bytes))
    await _opened(fifo)
    await fifo.splice(file, len(data))
    os.close(file)
    await fifo.finish()
    fifo.close()
    assert await reader == data


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who gives files away")
async def test_a_fifo_of_another_user_is_refused(tmp_path: Path) -> None:
    """The other user could read the data. The error names both users, and the FIFO stays as it was."""
    path = tmp_path / "train_0"
    os.mkfifo(path, 0o600)
    os.chown(path, 2000, 2000)
    with FifoEvents() as events:
        with pytest.raises(BadRequest, match="expected a FIFO of user 0 or root, got one of user 2000") as refused:
            Fifo(path, events, lambda: None).make()
        assert refused.value.object == str(path)
        assert path.is_fifo()
        os.chown(path, 0, 0)
        Fifo(path, events, lambda: None).make().close()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link to a fifo", "link to nothing"])
async def test_whatever_is_no_fifo_is_refused(tmp_path: Path, kind: str) -> None:
    """A file, a folder, or a link that leads elsewhere, even to a FIFO: nothing is opened or removed."""
    path = tmp_path / "train_0"
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "link to a fifo":
            os.mkfifo(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    with FifoEvents() as events, pytest.raises(BadRequest, match="got another kind of file"):
        Fifo(path, events, lambda: None).make()
    assert path.is_symlink() or path.exists()


async def test_the_fifo_that_was_checked_is_the_one_that_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user who exchanges the file between the check and the opening gets nothing."""
    path, stolen = tmp_path / "train_0", tmp_path / "of another user"
    os.mkfifo(path)
    checked = Fifo._check_own

    def exchanged(fifo: Fifo, status: os.stat_result) -> None:
        checked(fifo, status)
        path.rename(tmp_path / "ours")
        os.mkfifo(stolen)
        stolen.rename(path)

    monkeypatch.setattr(Fifo, "_check_own", exchanged)
    with FifoEvents() as events:
        fifo = Fifo(path, events, lambda: None).make()
        thief = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        reader = os.open(tmp_path / "ours", os.O_RDONLY | os.O_NONBLOCK)
        await fifo.write(memoryview(b"data"))
        assert os.read(thief, 10) == b""
        assert os.read(reader, 10) == b"data"
        os.close(thief)
        os.close(reader)
        fifo.close()


async def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """A process that dies between making a FIFO and naming it leaves a hidden file, until the next one comes."""
    os.mkfifo(tmp_path / ".train_0.0123456789abcdef.feedd")
    with FifoEvents() as events:
        fifo = Fifo(tmp_path / "train_0", events, lambda: None).make()
        assert os.listdir(tmp_path) == ["train_0"]  # noqa: PTH208 - pathlib may block, says the linter
        fifo.close()
