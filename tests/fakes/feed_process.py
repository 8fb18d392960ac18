"""The scripted feed server in a process of its own, for tests that fork: gRPC servers do not survive forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.budget import PATIENT_S
from tests.fakes.forks import Module

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Return an environment in which child processes find both packages and the tests, wherever they run."""
    paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def rank_environment(rank: int, count: int) -> dict[str, str]:
    """Return what a launcher tells one of ``count`` ranks on one node."""
    return {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}


class FeedProcess:
    """A server process; a context manager. ``report`` says at the end what it saw."""

    def __init__(self, socket_path: Path, **script: Any) -> None:
        self.address = f"unix://{socket_path}"
        self.report: dict[str, Any] = {}
        self._log = socket_path.with_suffix(".log")
        arguments = [str(socket_path), json.dumps(script)]
        self._process = Module("tests.fakes.feed_server", arguments, environment(), self._log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._process)
            assert self._process.stdout.readline() == b"ready\n", self._log.read_text()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            out = self._process.communicate(timeout=PATIENT_S)
        if exc[0] is None:
            self.report = json.loads(out)
            assert not self.report["violations"], self.report


def run_probe(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = PATIENT_S,
    forked: bool = True,
) -> dict[str, Any]:
    """Run a probe module to its end in a process of its own; return the JSON object it prints last.

    ``env``: what is added to its environment. ``forked``: from a process that has imported everything; else as a user
    would run it, with an interpreter's end.
    """
    env = {**environment(), **(env or {})}
    if forked:
        with tempfile.TemporaryDirectory(prefix="feedd-said-") as folder:
            log = Path(folder) / "err"
            with Module(module, arguments, env, log) as process:
                out = process.communicate(timeout_s).decode()
                code, complaints = process.poll(), log.read_text()
    else:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, code, complaints = done.stdout, done.returncode, done.stderr
    assert code == 0, complaints[-4000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
