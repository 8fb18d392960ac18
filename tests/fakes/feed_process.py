"""The scripted feed server in a process of its own, for tests that fork: gRPC servers do not survive forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Return an environment in which child processes find both packages and the tests, wherever they run."""
    paths = [str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class FeedProcess:
    """A server process; a context manager. ``report`` says at the end what it saw."""

    def __init__(self, socket_path: Path, **script: Any) -> None:
        self.address = f"unix://{socket_path}"
        self.report: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.feed_server", str(socket_path), json.dumps(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            out, _ = self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        if exc[0] is None:
            self.report = json.loads(out)
            assert not self.report["violations"], self.report


def run_probe(module: str, *arguments: str, timeout_s: float = 90.0, **variables: str) -> dict[str, Any]:
    """Run a probe module to its end in a clean process; return the JSON object it prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
