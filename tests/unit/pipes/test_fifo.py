"""One FIFO, and a reader that opens and closes it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

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
