"""Writes to files from the event loop, which must not wait for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.file_writers import Writers
    from feedd.flow.pools import Pool

_P = ParamSpec("_P")


async def write_in(
    pool: Pool, writers: Writers, write: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs
) -> None:
    """Call ``write``, which writes to a file, in a thread of ``pool``; after a cancellation it still ends by itself.

    Raises:
        Whatever the write raised. OSError: no thread can be started.
    """

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
