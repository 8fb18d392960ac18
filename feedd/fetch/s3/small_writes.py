"""Small bodies on their way from memory into files, many at a time. Blocking: done in a transfer thread."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from feedd.flow.mapping import FilePlace

_RUN_COUNT_MAX: Final = 64  # neighbours written by one call; 100 KB each, that is as much as a part of a large object


@dataclass(eq=False, slots=True)
class Write:
    """Bytes for one place of a file.

    Attributes:
        place: where they go; its ``writers`` are told when the file is left alone.
        data: all of them; nobody else's until ``ended`` is called.
        loop: whose ``ended`` is called.
        ended: called on the loop, whatever came of it.
        stopped: nobody wants them any more; set on the loop.
        error: why they could not be written.
    """

    place: FilePlace
    data: memoryview
    loop: asyncio.AbstractEventLoop
    ended: Callable[[Write], object]
    stopped: bool = False
    error: Exception | None = None


def write_all(writes: Sequence[Write]) -> None:
    """Write them, neighbours in one call, and tell; raises nothing."""
    for run in _runs(writes):
        try:
            _write(run)
        except Exception as error:  # noqa: BLE001 - it ends these bodies, not the thread that all others need
            for write in run:
                write.error = error
    end_all(writes)


def end_all(writes: Iterable[Write]) -> None:
    """Tell that nothing more is written, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        write.place.writers.end()
        by_loop.setdefault(write.loop, []).append(write)
    for loop, ended in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_tell, ended)


def _runs(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """Yield those that are wanted, in runs that lie behind one another in one file."""
    run: list[Write] = []
    end = -1
    for write in sorted((one for one in writes if not one.stopped), key=_position):
        if run and (write.place.fd != run[0].place.fd or write.place.at != end or len(run) == _RUN_COUNT_MAX):
            yield run
            run = []
        run.append(write)
        end = write.place.at + write.data.nbytes
    if run:
        yield run


def _position(write: Write) -> tuple[int, int]:
    return write.place.fd, write.place.at


def _write(run: Sequence[Write]) -> None:
    left = [write.data for write in run]
    fd, at = run[0].place.fd, run[0].place.at
    while left:
        count = os.pwritev(fd, left, at)
        at += count
        while left and count >= left[0].nbytes:
            count -= left.pop(0).nbytes
        if left:
            left[0] = left[0][count:]
    for write in run:
        if write.place.landed is not None and not write.stopped:
            write.place.landed(write.place.at, write.data, begins=True)


def _tell(writes: Iterable[Write]) -> None:
    for write in writes:
        write.ended(write)
