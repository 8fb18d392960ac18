"""A real ``feedd serve`` process for tests: started, asked, stopped or killed by its pid."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.budget import PATIENT_S
from tests.fakes.forks import Command
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_S = STOP_S = PATIENT_S


_PORTS_EACH = 1250
_PORTS_AT = 10_000 + _PORTS_EACH * int(os.environ.get("PYTEST_XDIST_WORKER", "gw15").removeprefix("gw"))
_PORTS = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """Return a free loopback port that no other test process is given.

    Each process of pytest-xdist has ports of its own: a port is free until its daemon listens, which takes a while.
    None of them is given to a connection: those ports begin at 32,768.
    """
    while True:
        port = _PORTS_AT + next(_PORTS) % _PORTS_EACH
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(slots=True)
class Daemon:
    """One daemon: a context manager that ends it whatever happened; where nothing did, it must leave as it should.

    ``forked``: from a process that has imported everything, and calls ``before``; else the command is started as a
    user's is.
    """

    home: Path
    endpoint: str
    workers: int = 1
    cache_size: str = "1GiB"
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    tcp_only: bool = False
    status_port: int = field(default_factory=free_port)
    tcp_port: int = field(default_factory=free_port)
    forked: bool = True
    before: Callable[[], object] | None = None
    process: subprocess.Popen[bytes] | Command | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.tcp_port}" if self.tcp_only else f"unix://{self.home}/feedd.sock"

    @property
    def log(self) -> Path:
        """Its stderr."""
        return self.home / "feedd.log"

    def start(self) -> Self:
        """Start and wait until it is ready."""
        arguments = ["serve", "--listen", self.address]
        arguments += ["--cache-dir", str(self.home / "cache"), "--cache-size", self.cache_size]
        arguments += ["--status", f"127.0.0.1:{self.status_port}", "--workers", str(self.workers), "--log", "json"]
        for setting in ("cache.free_reserve=16MiB", *self.settings):
            arguments += ["--set", setting]
        arguments += self.flags
        env = os.environ | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        if self.forked:
            self.process = Command(arguments, env, self.log, before=self.before)
        else:
            command = [sys.executable, "-m", "feedd", *arguments]
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self.healthy():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)
        return self

    def healthy(self) -> bool:
        """Whether /healthz says ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/healthz", timeout=30) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, summed over labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/metrics", timeout=PATIENT_S) as answer:
            text = answer.read().decode()
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def decode_workers(self) -> list[psutil.Process]:
        """Its decode workers that live."""
        assert self.process is not None
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if _is_worker(child)]

    def wait_idle(self, sessions: int = 0, timeout_s: float = PATIENT_S) -> None:
        """Wait until nothing is held for any client; fail with what is.

        A living dataset keeps its session (and arena) for its next epoch: ``sessions`` says how many do. The last
        batch of a pass is the trainer's, and its lease ends with the next pass or the session.
        """
        held = (
            "feedd_serve_sessions",
            "feedd_serve_leases",
            "feedd_serve_arena_bytes",
            "feedd_cache_pins",
            "feedd_cache_reserved_bytes",
            "feedd_fetch_reserved_bytes",
            "feedd_fetch_parts",
            "feedd_pipeline_making_bytes",
            "feedd_decode_tasks",
        )
        deadline = time.monotonic() + timeout_s
        while True:
            values = self.metrics()
            missing = [name for name in held if name not in values]
            assert not missing, missing
            if values["feedd_serve_sessions"] == sessions:
                values |= {"feedd_serve_sessions": 0, "feedd_serve_arena_bytes": 0 if sessions else values[held[2]]}
                values[held[1]] = max(values[held[1]] - sessions, 0)
            busy = {name: values[name] for name in held if values[name]}
            if not busy:
                return
            assert time.monotonic() < deadline, (busy, self.log.read_text()[-3000:])
            time.sleep(0.05)

    def stop(self) -> int:
        """SIGTERM, wait, return the exit code; SIGKILL and fail where it does not go."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("did not stop: " + self.log.read_text()[-3000:]) from None

    def kill(self) -> None:
        """SIGKILL, as the OOM killer does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def settle(self) -> None:
        """Wait until it holds nothing for anybody; datasets and batches without a reference are collected first."""
        if self.metrics()["feedd_serve_arena_bytes"]:
            gc.collect()  # an error that a test caught holds its frames, and the datasets and batches in them
        self.wait_idle()

    def leave(self) -> None:
        """Stop it; it must hold nothing for anybody, and go with exit code 0, unless a test has killed it."""
        if self.process is None:
            return
        code = self.process.poll()
        if code is None and self.healthy():
            self.settle()
        code = self.stop() if code is None else code
        assert code in {0, -signal.SIGKILL}, (code, self.log.read_text()[-3000:])

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            try:
                self.leave()
            finally:
                self.end()
        else:
            self.tell()
            self.end()

    def tell(self) -> None:
        """Print how it ended, and the end of its log: a failed test shows what it printed."""
        code = None if self.process is None else self.process.poll()
        log = self.log.read_text()[-3000:] if self.log.exists() else "no log"
        print(f"{self.home}: exit code {code}\n{log}")

    def end(self) -> None:
        """End it in any case."""
        if self.process is not None and self.process.poll() is None:
            lanes = psutil.Process(self.process.pid).children()
            self.kill()
            psutil.wait_procs(lanes, timeout=STOP_S)


def _is_worker(process: psutil.Process) -> bool:
    return "feedd.workers.worker" in command_of(process)
