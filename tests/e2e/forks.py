"""Processes forked from one that has imported what they need: that takes longer than most of these tests.

What a process does before its first line runs is tested where a test starts the command itself (``Daemon.forked``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PRELOADED: Final = (
    "tests.e2e.trainer",
    "feedd.cli.app",
    "feedd.daemon.life",
    "feedd.source.s3.client",
    "aiobotocore.httpsession",
    "grpc.aio",
    "uvloop",
)

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(_PRELOADED))


def warm_up() -> None:
    """Start the process that others are forked from; it stays until the tests end."""
    forkserver.ensure_running()


class Command:
    """``feedd ARGUMENTS`` with an environment of its own: what tests use of a ``Popen``.

    Attributes:
        pid: of the process.
    """

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._process = FORKS.Process(target=_feedd, args=(tuple(arguments), dict(env), str(log)), daemon=True)
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
            raise subprocess.TimeoutExpired(f"feedd, pid {self.pid}", timeout or 0.0)
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


def _feedd(arguments: tuple[str, ...], env: dict[str, str], log: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(fd, standard)
    os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["feedd", *arguments]

    from feedd.cli import main  # noqa: PLC0415 - imported already, but not where tests import this module

    main()
