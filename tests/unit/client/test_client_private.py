"""An arena that others read, too: what is written here stays here, is forgotten when told, and CUDA leaves it alone."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
import torch

from feedd_client import shm
from feedd_client.pinning import register

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = 8
SIZE = PAGES * mmap.PAGESIZE


@pytest.fixture
def both() -> Iterator[tuple[mmap.mmap, shm.Mapping]]:
    """The daemon's mapping, full of ones, and a client's private one."""
    fd = os.memfd_create("arena")
    try:
        os.ftruncate(fd, SIZE)
        with mmap.mmap(fd, SIZE) as ours:
            ours[:] = b"\1" * SIZE
            theirs = shm._map([fd], SIZE, "socket", mmap.MAP_PRIVATE)
            theirs.private, theirs.pid, theirs.lifeline, theirs.on_unmap = True, os.getpid(), -1, []
            yield ours, theirs
            theirs.close()
    finally:
        os.close(fd)


def test_what_is_written_is_private_until_forgotten(both: tuple[mmap.mmap, shm.Mapping]) -> None:
    """Only the range that is refreshed shows the arena's bytes again; where nothing was written new ones are seen."""
    ours, theirs = both
    theirs[:] = b"\2" * SIZE
    assert ours[:] == b"\1" * SIZE
    ours[:] = b"\3" * SIZE
    theirs.refresh(mmap.PAGESIZE, mmap.PAGESIZE + 1)
    wanted = b"\2" * mmap.PAGESIZE + b"\3" * 2 * mmap.PAGESIZE + b"\2" * (PAGES - 3) * mmap.PAGESIZE
    assert theirs[:] == wanted
    theirs.refresh(0, SIZE)
    assert theirs[:] == b"\3" * SIZE
    ours[:] = b"\4" * SIZE
    assert theirs[:] == b"\4" * SIZE


@pytest.mark.parametrize("page", range(PAGES))
def test_one_byte_is_noticed(both: tuple[mmap.mmap, shm.Mapping], page: int) -> None:
    """A single page that was written to is found, wherever it is, and no other is taken for one."""
    _, theirs = both
    assert sum(theirs[:]) == SIZE
    assert not shm._written(theirs.address, SIZE)
    theirs[page * mmap.PAGESIZE + 7] = 9
    assert [shm._written(theirs.address + n * mmap.PAGESIZE, 1) for n in range(PAGES)] == [
        n == page for n in range(PAGES)
    ]
    theirs.refresh(0, SIZE)
    assert not shm._written(theirs.address, SIZE)


def test_cuda_leaves_it_alone(both: tuple[mmap.mmap, shm.Mapping]) -> None:
    """It is not registered: batches go through pinned buffers."""
    assert not register(both[1], torch.device("cuda", 0))
