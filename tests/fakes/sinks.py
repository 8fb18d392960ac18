"""Sinks for tests: over memory of the test, and over files."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from feedd.flow.range_sinks import FileSink, MemorySink
from feedd.flow.sink_file import SinkFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from feedd.range_sink import RangeSink


def into(memory: bytes | bytearray | memoryview) -> MemorySink:
    """Return a sink over all of ``memory``; a view is used itself, so that its release tells of other views of it."""
    return MemorySink(memory if isinstance(memory, memoryview) else memoryview(memory))


def content(sink: RangeSink) -> bytes:
    """Return what a sink holds."""
    return b"".join(bytes(piece) for piece in sink.read())


def sink_file(path: Path, size_bytes: int) -> AbstractContextManager[SinkFile]:
    """Return a new file of zeros."""
    return _zeros(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC), size_bytes)


def memory_sink_file(size_bytes: int) -> AbstractContextManager[SinkFile]:
    """Return a new file of zeros in memory."""
    return _zeros(os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), size_bytes)


@contextmanager
def _zeros(fd: int, size_bytes: int) -> Iterator[SinkFile]:
    try:
        os.ftruncate(fd, size_bytes)
        file = SinkFile(fd)
    finally:
        os.close(fd)
    try:
        yield file
    finally:
        file.close()


def write_to(sink: RangeSink, at: int, data: bytes | memoryview) -> None:
    """Write to a sink at once, whatever a disk makes of that."""
    if isinstance(sink, FileSink):
        sink.write_now(at, memoryview(data))
    else:
        assert isinstance(sink, MemorySink)
        with sink.memory as memory:
            memory[at : at + len(data)] = data
