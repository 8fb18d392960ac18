"""One worker process as the event loop sees it: start, send, receive, kill, reap. No thread, no polling."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import feedd
from feedd.flow.memory import oom_kills
from feedd.recipe.tokenizers import VARIABLE as TOKENIZERS
from feedd.workers.messages import SCARCE, close_all, copies, out_of_descriptors
from feedd.workers.worker import receive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from feedd.workers.work import DecodeOptions


_SOCKET_BUFFER_BYTES: Final = 1 << 20
_KILL_WAIT_S: Final = 5.0
_RETRY_S: Final = 0.05


_FOR_WORKERS: Final = re.compile(
    r"PATH|HOME|TMPDIR|TZ|TZDIR|LANG|LANGUAGE|LOCPATH"
    r"|LC_(?:ALL|ADDRESS|COLLATE|CTYPE|IDENTIFICATION|MEASUREMENT|MESSAGES|MONETARY|NAME|NUMERIC|PAPER|TELEPHONE|TIME)"
    r"|PYTHON[A-Z0-9]+|PYTHON_(?:CPU_COUNT|GIL|JIT|PERF_JIT_SUPPORT)|COVERAGE_PROCESS_(?:START|CONFIG)|COV_CORE_[A-Z]+"
    r"|LD_(?:PRELOAD|LIBRARY_PATH|BIND_NOW)|GLIBC_TUNABLES|MALLOC_[A-Z_]+|(?:_RJEM_|JE_)?MALLOC_CONF|TCMALLOC_[A-Z_]+"
    r"|(?:OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|NUMBA|RAYON|ARROW|HDF5|OPENCV)_[A-Z0-9_]+|RUST_(?:BACKTRACE|LOG)"
    rf"|TOKENIZERS_PARALLELISM|{re.escape(TOKENIZERS)}"
)
"""The variables that workers may have: where programs and libraries lie, languages, threads and allocators."""


def _environment(names: Collection[str]) -> dict[str, str]:
    """Return a worker's environment: only what it needs and ``names``, this feedd package, and one thread per process.

    Credentials of the daemon may be in any variable, so nothing else is passed on.
    Arrow's own allocator takes 30 ms for its first buffers. The system's takes none, and is as fast afterwards.
    """
    passed = {name for name in os.environ if name in names or _FOR_WORKERS.fullmatch(name)}
    environment = {name: os.environ[name] for name in sorted(passed)}
    home = str(Path(feedd.__file__).parent.parent)
    path = [home, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    threads["TOKENIZERS_PARALLELISM"] = "false"
    return {"ARROW_DEFAULT_MEMORY_POOL": "system"} | environment | threads | {"PYTHONPATH": os.pathsep.join(path)}


def _arguments(options: DecodeOptions) -> list[str]:
    """Return the arguments of a worker after its descriptor and its parent's id."""
    readable = [] if options.readable is None else [json.dumps(options.readable)]
    return [str(options.nice), ",".join(map(str, options.cpus)) or "all", str(options.memory_bytes), *readable]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Child:
    """A started worker.

    Args:
        options: how to start the worker.
        on_message: called on the loop with each packet and its descriptors, which it then owns.

    Attributes:
        gone: done when the worker has closed its connection, at the latest by dying. The kernel frees a process's
            memory before its sockets, so nothing writes to an arena any more once this is done.
    """

    def __init__(self, options: DecodeOptions, on_message: Callable[[Child, bytes, list[int]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.killed_for = ""
        self._oom_kill_count = oom_kills()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for sock in (ours, theirs):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
            ours.settimeout(0.0)
            self._process = subprocess.Popen(  # noqa: S603 - our own module, or the operator's command
                [*options.command, str(theirs.fileno()), str(os.getpid()), *_arguments(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_environment(options.environment),
                start_new_session=True,  # the daemon handles Ctrl-C in a terminal
            )
            try:
                self._pidfd = os.pidfd_open(self._process.pid)
            except BaseException:
                self._process.kill()
                self._process.wait()  # it has hardly begun, so nothing can hold it up
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
        """Reason of its end, for people: ``SIGSEGV``, ``exit status 1``, ``ran past 60 s``."""
        code = self._process.returncode
        if self.killed_for or code is None:
            return self.killed_for or "still running"
        if code >= 0:
            return f"exit status {code}"
        if code == -signal.SIGKILL and oom_kills() > self._oom_kill_count:
            return "SIGKILL, because the control group ran out of memory"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def send(self, payload: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a packet, now or when the socket has room; until then the child object holds copies of the descriptors.

        Packets to a worker that is gone are dropped: ``gone`` informs the callers that await answers.

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
                raise out_of_descriptors(str(error.strerror)) from error
            return  # the worker closed its connection; its last answers may still wait to be read
        if len(self._outbox) == 1:
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _sent(self, payload: bytes, fds: Sequence[int]) -> bool:
        """Send a packet if the socket has room; a packet is sent whole or not at all. Return whether it was sent."""
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
                if error.errno in SCARCE:  # the sender has returned and can get no error, so retry
                    self._loop.remove_writer(self._socket.fileno())
                    self._loop.call_later(_RETRY_S, self._flush)
                    return
                self._drop_outbox()  # the worker closed its connection; its last answers may still wait to be read
                break
            close_all(fds)
            self._outbox.popleft()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())

    def _on_readable(self) -> None:
        # Read until nothing is left, because uvloop's libuv reports a socket with an error only once.
        while self._socket.fileno() >= 0:
            try:
                data, fds = receive(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionResetError:
                continue  # reported once, before answers that still wait to be read
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
        """Let the worker leave once it has answered its requests."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def kill(self, reason: str = "") -> None:
        """End the worker now; ``gone`` follows."""
        if self._process.returncode is None:
            self.killed_for = self.killed_for or reason
            self._process.kill()

    async def reap(self) -> None:
        """Wait until the process is gone; kill it if necessary. Afterwards all its resources are freed.

        A worker that closed its connection has nothing more to do, so it is killed first. A worker that is stuck in the
        kernel is given up after 5 s, because it can execute no further instruction.
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
            if self._process.poll() is None:  # cancelled meanwhile: the kill above may need a moment
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=1.0)


LONGEST_S: Final = 30.0
"""Maximum wait between two attempts, because nothing announces that processes or memory are available again."""


class BackOff:
    """Waits that double with each failure, up to ``LONGEST_S``.

    Args:
        first_s: the wait after the first failure, in seconds.

    Attributes:
        news: whether the last wait was longer than the one before, and so is worth a log line.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._last_s = 0.0
        self.news = False

    def failed(self) -> float:
        """Record a failure; return the seconds to wait."""
        wait_s = min(LONGEST_S, 2.0 * self._last_s or self._first_s)
        self.news = wait_s > self._last_s
        self._last_s = wait_s
        return wait_s

    def worked(self) -> None:
        """Record a success: the next failure starts with the first wait again."""
        self._last_s = 0.0


def anonymous_bytes(pid: int) -> int:
    """Return a process's own memory in bytes, without mapped files and arenas; 0 if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    found = text.partition(b"RssAnon:")[2].split(maxsplit=1)
    return int(found[0]) * 1024 if found else 0


def run_and_wait_s(pid: int) -> tuple[float, float]:
    """Return the seconds a process ran, and the seconds it was ready but had no core; (0, 0) if unknown."""
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_bytes().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
