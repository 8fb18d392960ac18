"""The S3 server of the benches: a process of its own over a folder; what it sent, and how fast it can."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from tests.bench.ingest.authority import make_certificate
from tests.bench.peers import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.ingest.authority import Certificate

_RECEIVE_BYTES = 1 << 20
_TRUSTED = ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")  # botocore; curl; obstore and whoever asks OpenSSL


@dataclass(frozen=True, slots=True)
class Sent:
    """What the server has sent so far."""

    get_count: int
    request_count: int
    body_bytes: int

    def since(self, before: Sent) -> Sent:
        """Return the difference."""
        return Sent(
            self.get_count - before.get_count,
            self.request_count - before.request_count,
            self.body_bytes - before.body_bytes,
        )


class BenchServer:
    """Runs ``tests.fakes.s3.server`` over ``root``; a context manager.

    Args:
        root: its buckets.
        latency_ms: before the first byte of each answer.
        tls: serve https, with a certificate that ``environment`` makes every contender trust.
        numbered: each file stands for many objects, see ``NumberedObjects``.
    """

    def __init__(self, root: Path, latency_ms: float = 0.0, *, tls: bool = False, numbered: bool = False) -> None:
        self._root = root
        self._latency_ms = latency_ms
        self._tls = tls
        self._numbered = numbered
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._certificate: Certificate | None = None
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        words = ["--root", str(self._root), "--latency-ms", str(self._latency_ms)]
        if self._numbered:
            words.append("--numbered")
        if self._tls:
            self._folder = tempfile.TemporaryDirectory(prefix="feedd-bench-")
            self._certificate = made = make_certificate(Path(self._folder.name))
            words += ["--tls", str(made.cert), str(made.key)]
        command = [sys.executable, "-m", "tests.fakes.s3.server", *words]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("https://" if self._tls else "http://"), f"expected a server's URL, got {self.url!r}"
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            if self._process.stdout is not None:
                self._process.stdout.close()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point every contender at this server, in the ways boto3 and the peers read."""
        trusted = {} if self._certificate is None else dict.fromkeys(_TRUSTED, str(self._certificate.authority))
        return trusted | {
            "AWS_ENDPOINT_URL": self.url,
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent/aws-config",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/aws-credentials",
        }

    def pin(self, cores: Sequence[int]) -> None:
        """Let it run on these cores only."""
        assert self._process is not None
        os.sched_setaffinity(self._process.pid, cores)

    def sent(self) -> Sent:
        """Ask for the counters."""
        trust = ssl.create_default_context(cafile=str(self._certificate.authority)) if self._certificate else None
        with urllib.request.urlopen(f"{self.url}/__stats", timeout=10, context=trust) as response:
            stats = json.load(response)
        return Sent(stats["requests"].get("GET", 0), sum(stats["requests"].values()), stats["body_bytes"])

    def raw_bytes_per_s(self, paths: Sequence[str], connection_count: int = 4) -> float:
        """Rate at which plain sockets drain whole objects from it: the limit no contender can pass."""
        address = urlsplit(self.url)
        todo, lock = list(paths), threading.Lock()
        totals: list[int] = []

        def drain() -> None:
            received = 0
            while True:
                with lock:
                    if not todo:
                        break
                    path = todo.pop()
                received += _drain(address.hostname or "", address.port or 80, path)
            totals.append(received)

        threads = [threading.Thread(target=drain) for _ in range(connection_count)]
        begin_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(totals) / (time.perf_counter() - begin_s)


def _drain(host: str, port: int, path: str) -> int:
    buffer = bytearray(_RECEIVE_BYTES)
    total = 0
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        total = len(head.partition(b"\r\n\r\n")[2])
        while total < length:
            count = connection.recv_into(buffer)
            assert count, f"expected {length} bytes of {path}, got {total}"
            total += count
    return total
