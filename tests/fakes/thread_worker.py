"""A decode worker as a thread: the production worker and its sockets without the 0.3 s of CPU that a process costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING
from unittest import mock

from feedd.workers import supervisor
from feedd.workers.process import Child
from feedd.workers.worker import serve
from tests.budget import nightly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedd.workers.work import DecodeOptions


class _Process:
    """What a ``Child`` asks of its process."""

    returncode: int | None = None
    pid = os.getpid()

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self._ours = ours
        self._theirs = theirs
        self.thread = threading.Thread(target=self._run, name="decode-worker", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self._theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            serve(self._theirs)
        self.returncode = 0

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        """Have it end with what it is doing: a thread cannot be stopped in the middle."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)


class ThreadChild(Child):
    """A worker that shares this process; one at a time, for what decoding keeps is the process's."""

    def __init__(self, options: DecodeOptions, on_message: Callable[[Child, bytes, list[int]], None]) -> None:
        assert options.workers == 1
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._outbox = deque()
        self.gone = self._loop.create_future()
        self.killed_for = ""
        self._oom_kill_count = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(0.0)
        self._process = _Process(self._socket, theirs)  # type: ignore[assignment]  # as much of one as is asked for
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    async def reap(self) -> None:
        """Wait until the thread has ended."""
        self.kill()
        await asyncio.wait((self.gone,))
        assert isinstance(self._process, _Process)
        self._process.thread.join()  # it has closed its socket: nothing is left to do


@contextlib.contextmanager
def cheap_workers() -> Iterator[None]:
    """Have pools of one worker start a thread; ``make nightly`` starts processes."""
    if nightly():
        yield
    else:
        with mock.patch.object(supervisor, "Child", ThreadChild):
            yield
