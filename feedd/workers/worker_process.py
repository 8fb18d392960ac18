"""One worker process as the event loop sees it: start, send, receive, kill, reap. No thread, no polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import feedd
from feedd.workers.descriptors import SCARCE, close_all, copies, no_room
from feedd.workers.worker import receive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.workers.work import DecodeOptions

_SOCKET_BUFFER_BYTES: Final = 1 << 20
_KILL_WAIT_S: Final = 5.0
_RETRY_S: Final = 0.05


def _environment() -> dict[str, str]:
    """Return what a worker inherits: no credentials, our own package, and one thread per process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    home = str(Path(feedd.__file__).parent.parent)
    path = [home, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads["TOKENIZERS_PARALLELISM"] = "false"
    return environment | threads | {"PYTHONPATH": os.pathsep.join(path)}


def _cores(options: DecodeOptions) -> list[str]:
    return [",".join(map(str, options.cpus))] if options.cpus else []


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Child:
    """A started worker.

    Args:
        options: how to start it.
        on_message: called on the loop with each packet and its descriptors, which it then owns.

    Attributes:
        gone: done when the worker hung up, which it does by dying at the latest. The kernel drops a process's memory
            before its sockets, so nothing writes to an arena any more once this is done.
    """

    def __init__(self, options: DecodeOptions, on_message: Callable[[Child, bytes, list[int]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.killed_for = ""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for sock in (ours, theirs):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
            ours.settimeout(0.0)
            self._process = subprocess.Popen(  # noqa: S603 - our own module, or what the operator configured
                [*options.command, str(theirs.fileno()), str(os.getpid()), str(options.nice), *_cores(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                start_new_session=True,  # Ctrl-C in a terminal is the daemon's to handle
            )
            try:
                self._pidfd = os.pidfd_open(self._process.pid)
            except BaseException:
                self._process.kill()
                self._process.wait()  # it has hardly begun: there is nothing that could hold it up
                raise
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._on_readable)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ending(self) -> str:
        """How it ended, for people: ``SIGSEGV``, ``exit status 1``, ``ran past 60 s``."""
        code = self._process.returncode
        if self.killed_for or code is None:
            return self.killed_for or "still running"
        if code >= 0:
            return f"exit status {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def send(self, payload: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a packet, now or as soon as the socket takes it; until then it holds copies of the descriptors.

        What is sent to a worker that is gone is dropped: whoever awaits the answer learns it by ``gone``.

        Raises:
            ResourceExhausted: there is no room for the descriptors; nothing is sent.
        """
        if self.gone.done():
            return
        try:
            if not self._outbox and self._sent(payload, fds):
                return
            self._outbox.append((payload, copies(fds)))
        except OSError as error:
            if error.errno in SCARCE:
                raise no_room(str(error.strerror)) from error
            return  # it hung up; its last answers may still wait to be read
        if len(self._outbox) == 1:
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _sent(self, payload: bytes, fds: Sequence[int]) -> bool:
        """Send a packet if the socket has room for it: a packet goes whole or not at all."""
        try:
            if fds:
                socket.send_fds(self._socket, [payload], fds)
            else:
                self._socket.send(payload)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _flush(self) -> None:
        while self._outbox and self._socket.fileno() >= 0:
            payload, fds = self._outbox[0]
            try:
                if not self._sent(payload, fds):
                    self._loop.add_writer(self._socket.fileno(), self._flush)
                    return
            except OSError as error:
                if error.errno in SCARCE:  # whoever sent it is told nothing any more, so it is tried again
                    self._loop.remove_writer(self._socket.fileno())
                    self._loop.call_later(_RETRY_S, self._flush)
                    return
                self._drop_outbox()  # it hung up; its last answers may still wait to be read
                break
            close_all(fds)
            self._outbox.popleft()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())

    def _on_readable(self) -> None:
        # Reads until nothing is left: libuv, under uvloop, reports a socket with an error once and never again.
        while self._socket.fileno() >= 0:
            try:
                data, fds = receive(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionResetError:
                continue  # reported once, before the answers that still wait to be read
            except OSError:
                data, fds = b"", []
            if data:
                self._on_message(self, data, fds)
            else:
                self._hang_up()

    def _hang_up(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._drop_outbox()
        _set(self.gone)

    def _drop_outbox(self) -> None:
        while self._outbox:
            close_all(self._outbox.popleft()[1])

    def retire(self) -> None:
        """Let it leave once it has answered what it holds."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def kill(self, reason: str = "") -> None:
        """End it now; ``gone`` follows."""
        if self._process.returncode is None:
            self.killed_for = self.killed_for or reason
            self._process.kill()

    async def reap(self) -> None:
        """Wait until the process is gone, killing it where need be; afterwards nothing of it is left.

        A worker that hung up has nothing more to do, so it is killed first. One stuck in the kernel is given up after
        5 s: it can execute no further instruction of its own.
        """
        exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, _set, exited)
        try:
            if self._process.poll() is None:
                self.kill()
                await asyncio.wait((exited,), timeout=_KILL_WAIT_S)
        finally:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._hang_up()
            if self._process.poll() is None:  # cancelled meanwhile: the kill above needs a moment to be true
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=1.0)
