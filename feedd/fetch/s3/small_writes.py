"""Writes many small bodies from memory into files at a time. Blocking: called in a transfer thread."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from feedd.flow.range_sinks import FileSink

_RUN_COUNT_MAX: Final = 64  # adjacent bodies written by one call; with 100 KB each, as much as a part of a large object


@dataclass(eq=False, slots=True)
class Write:
    """Bytes for one region of a file.

    Attributes:
        sink: the region; its ``writers`` learn when the write has ended.
        data: the bytes; reserved until ``ended`` is called.
        loop: event loop on which ``ended`` is called.
        ended: called after success or failure.
        stopped: the bytes are no longer wanted; set on the loop.
        error: why they could not be written.
        fd: descriptor of the file, which stays open until the writers are told.
    """

    sink: FileSink
    data: memoryview
    loop: asyncio.AbstractEventLoop
    ended: Callable[[Write], object]
    stopped: bool = False
    error: Exception | None = None
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        self.fd = self.sink.file.fd


def write_all(writes: Sequence[Write]) -> None:
    """Write all bodies, adjacent ones in one call, and report the results; raises nothing."""
    for run in _runs(writes):
        try:
            _write(run)
        except Exception as error:  # noqa: BLE001 - it ends these bodies, not the thread that all others need
            for write in run:
                write.error = error
    end_all(writes)


def end_all(writes: Iterable[Write]) -> None:
    """Report the end of the writes, with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        write.sink.file.writers.end()
        by_loop.setdefault(write.loop, []).append(write)
    for loop, ended in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
            loop.call_soon_threadsafe(_report_end, ended)


def _runs(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """Yield the wanted writes in runs that are adjacent in one file."""
    run: list[Write] = []
    end = -1
    for write in sorted((one for one in writes if not one.stopped), key=_position):
        if run and (write.sink.file is not run[0].sink.file or write.sink.offset != end or len(run) == _RUN_COUNT_MAX):
            yield run
            run = []
        run.append(write)
        end = write.sink.offset + write.data.nbytes
    if run:
        yield run


def _position(write: Write) -> tuple[int, int]:
    return id(write.sink.file), write.sink.offset


def _write(run: Sequence[Write]) -> None:
    left = [write.data for write in run]
    fd, at = run[0].fd, run[0].sink.offset
    while left:
        count = os.pwritev(fd, left, at)
        at += count
        while left and count >= left[0].nbytes:
            count -= left.pop(0).nbytes
        if left:
            left[0] = left[0][count:]
    for write in run:
        if not write.stopped:
            write.sink.note_written(0, write.data, begins=True)


def _report_end(writes: Iterable[Write]) -> None:
    for write in writes:
        write.ended(write)
