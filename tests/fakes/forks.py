"""Processes forked from one that has imported what they need: that takes longer than most of these tests.

What a process does before its first line runs is tested where a test starts the command itself (``Daemon.forked``).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

_PRELOADED: Final = (
    "tests.e2e.trainer",
    "tests.fakes.feed_server",
    *(f"feedd.cli.{name}" for name in ("app", "cache", "files", "index", "pack", "pipe", "plan", "serve")),
    "feedd.daemon.life",
    "feedd.pipes.pipe_run",
    "feedd.fetch.s3.client",
    "aiobotocore.httpsession",
    "grpc.aio",
    "uvloop",
    "tests.fakes.warmed",  # the last
)

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(_PRELOADED))


def warm_up() -> None:
    """Start the process that others are forked from; it stays until the tests end."""
    forkserver.ensure_running()


class _Fork:
    """A process of a fork: what tests use of a ``Popen``.

    Attributes:
        pid: of the process.
    """

    def __init__(self, name: str, body: Callable[..., object], *arguments: object, may_fork: bool) -> None:
        self._name = name
        self._process = FORKS.Process(target=body, args=arguments, daemon=not may_fork)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended it; None while it runs."""
        if self._code is None and self._process.exitcode is not None:
            self._code = self._process.exitcode
            self._process.close()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how it ended.

        Raises:
            TimeoutExpired: it goes on.
        """
        if self._code is None:
            self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"{self._name}, pid {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Command(_Fork):
    """``feedd ARGUMENTS`` with an environment of its own.

    What it writes is appended to ``log``; its standard output to ``out`` where that is given. ``before`` is called in
    the process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        out: Path | None = None,
        *,
        before: Callable[[], object] | None = None,
    ) -> None:
        places = (str(out or log), str(log))
        super().__init__("feedd", _feedd, tuple(arguments), dict(env), places, before, may_fork=False)


class Talker(_Fork):
    """A program of Python with an environment of its own; it may have children.

    Its standard input and output are pipes, what it writes to its standard error is appended to ``log``. A context
    manager that ends it whatever happened.

    Attributes:
        stdin, stdout: the ends of this process.
    """

    def __init__(
        self, name: str, body: Callable[[], object], arguments: Sequence[str], env: Mapping[str, str], log: Path
    ) -> None:
        its_input, given = FORKS.Pipe(duplex=False)
        said, its_output = FORKS.Pipe(duplex=False)
        with its_input, its_output, given, said:
            ends = (its_input, its_output)
            super().__init__(name, _talk, name, body, tuple(arguments), dict(env), ends, str(log), may_fork=True)
            self.stdin = os.fdopen(os.dup(given.fileno()), "wb")
            self.stdout = os.fdopen(os.dup(said.fileno()), "rb")

    def communicate(self, timeout: float) -> bytes:
        """Close its standard input and wait for its end; return what it wrote to its standard output since.

        Raises:
            TimeoutExpired: it goes on; what it wrote last may be in nobody's hands.
        """
        self.stdin.close()
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(self.stdout.read()))
        reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            raise
        finally:
            reader.join()
        return found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self.wait()
        self.stdin.close()
        self.stdout.close()


class Module(Talker):
    """``python -m MODULE ARGUMENTS``."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        super().__init__(module, partial(_run_module, module), arguments, env, log)


class Script(Talker):
    """``python -c CODE ARGUMENTS``: what is killed, or ends by its last line; errors and signals end it otherwise."""

    def __init__(self, code: str, arguments: Sequence[str], log: Path) -> None:
        super().__init__("-c", partial(exec, code, {"__name__": "__main__"}), arguments, os.environ, log)


class Running:
    """A command that ends by itself, and what it says; a context manager that ends it whatever happened."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], *, before: Callable[[], object] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feedd-said-")
        self._said = [Path(self._folder.name) / name for name in ("out", "err")]
        self.args = ["feedd", *arguments]
        self._command = Command(arguments, env, self._said[1], self._said[0], before=before)

    @property
    def returncode(self) -> int | None:
        """How it ended; None: it has not."""
        return self._command.poll()

    def poll(self) -> int | None:
        """Return how it ended; None: it has not."""
        return self._command.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self._command.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._command.terminate()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; return what it wrote to its standard output, and to its standard error."""
        self._command.wait(timeout)
        out, err = (said.read_text() if said.exists() else "" for said in self._said)
        return out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._command.poll() is None:
            self._command.kill()
            self._command.wait()
        self._folder.cleanup()


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float = PATIENT_S,
    *,
    before: Callable[[], object] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Do ``feedd ARGUMENTS``, forked; the same result as ``subprocess.run`` with texts."""
    with Running(arguments, env, before=before) as running:
        out, err = running.communicate(timeout_s)
        code = running.returncode
    assert code is not None
    return subprocess.CompletedProcess(["feedd", *arguments], code, out, err)


def keep_no_listing() -> None:
    """Have a daemon list anew whenever it is asked, so that one test's objects are not another's."""
    from feedd.catalog import dataset_catalog as catalog  # noqa: PLC0415 - in the daemon's process only

    catalog._FRESH_S = -1.0


def _feedd(
    arguments: tuple[str, ...], env: dict[str, str], places: tuple[str, str], before: Callable[[], object] | None
) -> None:
    for standard, place in zip((1, 2), places, strict=True):
        _append(standard, place)
    _become("feedd", arguments, env)
    if before is not None:
        before()

    from feedd.cli import main  # noqa: PLC0415 - imported already, but not where tests import this module

    main()


def _talk(
    name: str,
    body: Callable[[], object],
    arguments: tuple[str, ...],
    env: dict[str, str],
    ends: tuple[Connection, Connection],
    log: str,
) -> None:
    for standard, end in enumerate(ends):
        os.dup2(end.fileno(), standard)
        end.close()
    _append(2, log)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has closed it
    _become(name, arguments, env)
    try:
        body()
    finally:
        atexit._run_exitfuncs()  # as at the end of any process that is not multiprocessing's


def _run_module(module: str) -> None:
    sys.modules.pop(module, None)  # tests of this process may have imported it
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _append(standard: int, place: str) -> None:
    fd = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(fd, standard)
    os.close(fd)


def _become(name: str, arguments: tuple[str, ...], env: dict[str, str]) -> None:
    multiprocessing.set_start_method(None, force=True)  # its children start as those of any process do
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [name, *arguments]
