"""Starts a real ``feedd serve`` as a child, so that its CPU time and memory count as the arm's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_START_TIMEOUT_S = 60.0
_LOOK_INTERVAL_S = 0.005
_STOP_TIMEOUT_S = 20.0


def start(settings: dict[str, Any], program: Sequence[str] = ("-m", "feedd")) -> tuple[subprocess.Popen[bytes], str]:
    """Start a daemon whose socket and log lie in ``run_dir``; return it and its address, not waiting for it.

    Its cache takes ``cache_size``, 8 GiB unless said. ``program`` are the interpreter's arguments before ``serve``.
    """
    folder = Path(settings["run_dir"])
    address = f"unix://{folder / 'feedd.sock'}"
    arguments = ["serve", "--listen", address, "--cache-dir", settings["cache_dir"]]
    arguments += ["--cache-size", settings.get("cache_size", "8GiB")]
    arguments += ["--workers", str(settings["workers"]), "--status", "off", "--log", "text"]
    with (folder / "feedd.log").open("ab") as log:
        child = subprocess.Popen([sys.executable, *program, *arguments], stdout=log, stderr=log)
    return child, address


def wait_ready(child: subprocess.Popen[bytes], address: str) -> None:
    """Return when the daemon's health service says that it serves."""
    path = Path(address.removeprefix("unix://"))
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not path.exists():
        if child.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"expected a daemon, got exit {child.returncode}: {_tail(path.parent)}")
        time.sleep(_LOOK_INTERVAL_S)  # a file can only be looked for
    options = [("grpc.min_reconnect_backoff_ms", 20), ("grpc.initial_reconnect_backoff_ms", 20)]
    with grpc.insecure_channel(address.replace("unix://", "unix:"), options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        while (
            stub.Check(request, timeout=_START_TIMEOUT_S, wait_for_ready=True).status
            != health_pb2.HealthCheckResponse.SERVING
        ):
            time.sleep(_LOOK_INTERVAL_S)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End it and wait."""
    child.terminate()
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextlib.contextmanager
def running(settings: dict[str, Any]) -> Iterator[str]:
    """A ready daemon; gives its address."""
    child, address = start(settings)
    try:
        wait_ready(child, address)
        yield address
    finally:
        stop(child)


def _tail(folder: Path) -> str:
    return (folder / "feedd.log").read_text(errors="replace")[-1500:]
