"""Writes to files from the event loop, which must not wait for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, ParamSpec

from feedd.errors import CacheUnavailable
from feedd.flow.mapping import file_of, write_at
from feedd.flow.pools import CACHE_DISK

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.file_writers import Writers
    from feedd.flow.mapping import FilePlace
    from feedd.flow.pools import Pool

_P = ParamSpec("_P")


async def write_over(target: memoryview, data: bytes, *, begins: bool = True) -> None:
    """Write ``data`` to ``target``, which has the same length; a thread writes to a file on disk.

    After a cancellation, a write that was handed over ends by itself; see ``Writers``.

    Args:
        target: any writable memory.
        data: the bytes to write.
        begins: see ``Landed``.

    Raises:
        CacheUnavailable: the file cannot be written.
    """
    place = file_of(target) if target.nbytes else None
    if place is None:
        target[:] = data
        return
    try:
        if place.in_memory:
            _write_place(place, data, begins)
        else:
            await write_in(CACHE_DISK, place, _write_place, place, data, begins)
    except OSError as error:
        message = f"the received bytes cannot be written: {error.strerror}"
        raise CacheUnavailable(message, stage="source") from error


def _write_place(place: FilePlace, data: bytes, begins: bool) -> None:  # noqa: FBT001 - called by a thread
    view = memoryview(data)
    write_at(place.fd, view, place.at)
    if place.landed is not None:
        place.landed(place.at, view, begins=begins)


async def write_in(
    pool: Pool, place: FilePlace, write: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs
) -> None:
    """Call ``write``, which writes to ``place``, in a thread of ``pool``; after a cancellation it still ends by itself.

    Raises:
        Whatever the write raised. OSError: no thread can be started.
    """
    writers = place.writers

    def work() -> None:
        try:
            write(*args, **kwargs)
        finally:
            writers.end()

    writers.begin()
    try:
        job = pool.begin(work)
    except RuntimeError as error:
        writers.end()
        raise OSError(errno.EAGAIN, str(error)) from error
    job.add_done_callback(_look_at)
    await asyncio.shield(job)


async def left_alone(writers: Writers, within_s: float) -> bool:
    """Wait until no write is pending. False: the deadline passed, so the disk does not answer."""
    if not writers.count:
        return True
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not gone.done():
            gone.set_result(None)

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
            loop.call_soon_threadsafe(note)

    writers.then(tell)
    try:
        async with asyncio.timeout(within_s):
            await gone
    except TimeoutError:
        return False
    return True


def _look_at(job: asyncio.Future[None]) -> None:
    """Retrieve the error of an abandoned write, so that asyncio does not log it."""
    if not job.cancelled():
        job.exception()
