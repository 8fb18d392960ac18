"""The embedded S3 server, and one daemon per demonstrated node."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from feedd.demo.processes import failed, start
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

_START_S = 60.0
_POLL_S = 0.05
_HOME_BYTES_MAX = 88  # a socket's path may have 101 bytes, less "/node-15.sock"


@dataclass(frozen=True, slots=True)
class Counters:
    """A daemon's counters at one moment, or their difference between two."""

    gets: float = 0
    read_bytes: float = 0
    hits: float = 0
    misses: float = 0

    def minus(self, other: Counters) -> Counters:
        """Return what was added since ``other``."""
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Node:
    """One daemon and its addresses."""

    address: str
    status_url: str

    async def counters(self) -> Counters:
        """Return the daemon's counters, read from its /metrics."""
        text = await CPU.run(_get, f"{self.status_url}/metrics")
        totals = {"get": 0.0, "bytes": 0.0, "hits": 0.0, "misses": 0.0}
        names = {
            "feedd_source_bytes_total": "bytes",
            "feedd_cache_hits_total": "hits",
            "feedd_cache_misses_total": "misses",
        }
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "feedd_source_requests_total" and sample.labels.get("op") == "read":
                    totals["get"] += sample.value
                elif sample.name in names:
                    totals[names[sample.name]] += sample.value
        return Counters(totals["get"], totals["bytes"], totals["hits"], totals["misses"])


async def start_server(stack: AsyncExitStack, home: Path) -> str:
    """Start moto's S3 server, which keeps objects in memory, as a separate process; return its endpoint."""
    port, log = free_port(), home / "s3.log"
    process = await start(stack, "moto.server", ["-H", "127.0.0.1", "-p", str(port)], dict(os.environ), log)
    endpoint = f"http://127.0.0.1:{port}"
    await _wait_for(f"{endpoint}/moto-api/data.json", process, log, "the embedded S3 server")
    return endpoint


def _for_sockets(stack: AsyncExitStack, home: Path) -> Path:
    """Return ``home``, or a folder with a shorter path: ``TMPDIR`` may be long, and a socket's path has 101 bytes."""
    if len(os.fsencode(home)) <= _HOME_BYTES_MAX:
        return home
    short = Path(tempfile.mkdtemp(prefix="feedd-demo-", dir="/tmp"))
    stack.callback(shutil.rmtree, short, ignore_errors=True)
    return short


async def start_node(stack: AsyncExitStack, home: Path, index: int, env: dict[str, str]) -> Node:
    """Start a ``feedd serve`` with its own socket, cache and status port; return when the daemon is ready."""
    port, log = free_port(), home / f"node-{index}.log"
    address = f"unix://{_for_sockets(stack, home)}/node-{index}.sock"
    arguments = ["serve", "--listen", address, "--cache-dir", str(home / f"cache-{index}")]
    arguments += ["--cache-size", "4GiB", "--status", f"127.0.0.1:{port}", "--log", "text"]
    process = await start(stack, "feedd", arguments, env, log)
    await _wait_for(f"http://127.0.0.1:{port}/healthz", process, log, f"daemon {index}")
    return Node(address, f"http://127.0.0.1:{port}")


async def _wait_for(url: str, process: asyncio.subprocess.Process, log: Path, what: str) -> None:
    try:
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                try:
                    await CPU.run(_get, url)
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    await asyncio.sleep(_POLL_S)  # another process's readiness can only be polled
                else:
                    return
    except TimeoutError as error:
        raise failed(what, log, f"was not ready within {_START_S:.0f} s") from error
    raise failed(what, log, "ended early")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - our own loopback servers
        text: bytes = response.read()
    return text.decode()


def free_port() -> int:
    """Return a TCP port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
