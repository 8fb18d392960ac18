"""Where the objects come from: our server in a process of its own over made-up files, or the user's bucket."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from feedd.catalog.sources import Sources
from feedd.catalog.urls import parse_url
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import SourceOptions
from feedd.observe.recorder import NullRecorder
from feedd.units import MIB

if TYPE_CHECKING:
    from tests.bench.ingest.authority import Certificate
    from tests.fakes.s3.draws import Odds

BUCKET = "bench"
_STOP_S = 10.0
_SHARD_BYTES_LEAST = 1_000_000
_PACKAGES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Place:
    """Objects and how to get at them.

    Attributes:
        endpoint: URL of the store; empty: the real one.
        region: of the bucket.
        bucket: name.
        prefix: what all keys start with.
        objects: key and bytes of each.
        environment: credentials and trust, for every contender.
        ca_file: certificates to trust; empty: the system's.
    """

    endpoint: str
    region: str
    bucket: str
    prefix: str
    objects: tuple[tuple[str, int], ...]
    environment: dict[str, str]
    ca_file: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all objects."""
        return sum(size_bytes for _, size_bytes in self.objects)

    def trusting(self, endpoint: str, ca_file: str) -> Place:
        """Return the same objects at another endpoint."""
        trust = {"SSL_CERT_FILE": ca_file, "AWS_CA_BUNDLE": ca_file} if ca_file else {}
        return replace(self, endpoint=endpoint, ca_file=ca_file, environment={**self.environment, **trust})


def make_objects(root: Path, size_bytes: int, shard_bytes: int) -> Place:
    """Write files of random bytes under ``root``; the place has no endpoint yet.

    Small objects are named like pictures, so that feedd packs them, as it does for its users.
    """
    extension = "tar" if shard_bytes >= _SHARD_BYTES_LEAST else "jpg"
    block = os.urandom(min(64 * MIB, shard_bytes))
    (root / BUCKET / "shards").mkdir(parents=True)
    objects = []
    for index, start in enumerate(range(0, size_bytes, shard_bytes)):
        key, length = f"shards/{index:06d}.{extension}", min(shard_bytes, size_bytes - start)
        with (root / BUCKET / key).open("wb") as file:
            left = length
            while left:
                left -= file.write(index.to_bytes(8) + block[8 : min(left, len(block))] if left > 8 else block[:left])
        objects.append((key, length))
    environment = {
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench-secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return Place("", "us-east-1", BUCKET, "shards/", tuple(objects), environment)


def find_objects(url: str, size_bytes: int) -> Place:
    """List the user's objects, as many as come to ``size_bytes``, with credentials and endpoint from the environment.

    Raises:
        BadRequest, NotFound, PermissionDenied, StoreUnavailable: as ``Sources.resolve``.
    """

    async def resolve() -> list[tuple[str, int]]:
        async with Sources(SourceOptions(), NullRecorder(), SystemClock()) as sources:
            found, total_bytes = [], 0
            for ref in await sources.resolve([url]):
                if total_bytes >= size_bytes:
                    break
                found.append((ref.key, ref.size_bytes))
                total_bytes += ref.size_bytes
            return found

    objects = asyncio.run(resolve())
    location = parse_url(url)
    environment = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "SSL_CERT_"))}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    bucket = location.root.removeprefix("s3://")
    ca_file = environment.get("AWS_CA_BUNDLE", "")
    return Place(endpoint, region, bucket, location.key, tuple(objects), environment, ca_file)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server has done so far."""

    get_count: int
    error_count: int
    body_bytes: int
    cpu_s: float

    def since(self, before: Served) -> Served:
        """Return the difference."""
        return Served(
            self.get_count - before.get_count,
            self.error_count - before.error_count,
            self.body_bytes - before.body_bytes,
            self.cpu_s - before.cpu_s,
        )


class Server(Protocol):
    """A running server, seen from one section of the run."""

    @property
    def url(self) -> str:
        """The endpoint."""

    def served(self, *, reset: bool = False) -> Served:
        """Return the counters so far; ``reset`` lets draws of faults start over, where there are any."""


class ServerProcess:
    """Runs ``tests.fakes.s3.threads`` over ``root``; a context manager."""

    def __init__(self, root: Path, odds: Odds, certificate: Certificate | None = None) -> None:
        words = [sys.executable, "-m", "tests.fakes.s3.threads", "--root", str(root), "--seed", str(odds.seed)]
        words += ["--latency-ms", str(odds.latency_s * 1000), "--delayed", str(odds.delayed_share)]
        words += ["--delay-factor", str(odds.delay_factor), "--errors", str(odds.error_share)]
        words += ["--rate", str(odds.rate_bytes_s)]
        if certificate is not None:
            words += ["--tls", str(certificate.cert), str(certificate.key)]
        self._words = words
        self._trust = None
        if certificate is not None:
            self._trust = ssl.create_default_context(cafile=str(certificate.authority))
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._words, cwd=_PACKAGES, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http"), f"expected the server's URL, got {self.url!r}"
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_S)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def served(self, *, reset: bool = False) -> Served:
        """Ask for the counters; ``reset`` lets the draws of faults start over."""
        url = f"{self.url}/{'__reset' if reset else '__stats'}"
        with urllib.request.urlopen(url, timeout=_STOP_S, context=self._trust) as answer:
            stats = json.load(answer)
        errors = sum(count for status, count in stats["statuses"].items() if int(status) >= 500)
        return Served(stats["requests"].get("GET", 0), errors, stats["body_bytes"], stats["cpu_s"])
