"""Waits for readers of FIFOs: that one opens a FIFO, and that it takes bytes.

``inotify`` reports the opening, because no call that does not block does. An ``epoll`` of its own stands between the
FIFOs and the event loop: libuv stops watching a pipe whose reader is gone, and does not call back.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import struct
from typing import TYPE_CHECKING, Final, Self

from feedd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_OPENED: Final = 0x20  # IN_OPEN
_OVERFLOW: Final = 0x4000  # IN_Q_OVERFLOW: events were lost
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 << 10


class FifoEvents:
    """Events of FIFOs for the running event loop; used on that loop only."""

    def __init__(self) -> None:
        self._opened: dict[int, Callable[[], object]] = {}  # by inotify's number of the watch
        self._writable: dict[int, asyncio.Future[None]] = {}  # by descriptor

    def __enter__(self) -> Self:
        """Open the descriptors.

        Raises:
            ResourceExhausted: the kernel gives no inotify instance.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise _refused("fs.inotify.max_user_instances")
        self._epoll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._epoll.register(self._inotify, select.EPOLLIN)
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._deliver)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()
        os.close(self._inotify)

    def watch(self, path: Path, opened: Callable[[], object]) -> int:
        """Call ``opened`` whenever a process opens the file, now at ``path``; return a number for ``forget``.

        Raises:
            ResourceExhausted: the kernel gives no further watch.
        """
        number: int = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), _OPENED)
        if number < 0:
            raise _refused("fs.inotify.max_user_watches")
        self._opened[number] = opened
        return number

    def forget(self, number: int) -> None:
        """End a watch."""
        if self._opened.pop(number, None) is not None:
            self._libc.inotify_rm_watch(self._inotify, number)

    async def writable(self, fd: int) -> None:
        """Wait until a pipe has room, or its last reader is gone."""
        ready = asyncio.get_running_loop().create_future()
        self._writable[fd] = ready
        self._epoll.register(fd, select.EPOLLOUT | select.EPOLLONESHOT)
        try:
            await ready
        finally:
            del self._writable[fd]
            self._epoll.unregister(fd)

    def _deliver(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._inotify:
                self._note_opened()
            elif (ready := self._writable.get(fd)) is not None and not ready.done():
                ready.set_result(None)

    def _note_opened(self) -> None:
        try:
            data = os.read(self._inotify, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            for call in [*self._opened.values()] if mask & _OVERFLOW else [self._opened.get(number)]:
                if call is not None:
                    call()


def _refused(limit: str) -> ResourceExhausted:
    reason = os.strerror(ctypes.get_errno())
    return ResourceExhausted(
        f"expected to watch FIFOs, got {reason.lower()}", hint=f"raise sysctl {limit}", stage="pipe"
    )
