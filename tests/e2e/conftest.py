"""Fixtures of the end-to-end tests: one S3 server, daemons on demand."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from feedd.bench.server.server import S3Server
from tests.conftest import FAILED
from tests.e2e import forks
from tests.e2e.daemon import Daemon
from tests.e2e.leftovers import shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    """Start what daemons and trainers are forked from, before any test takes stock of its descriptors."""
    forks.warm_up()


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """An empty S3 server."""
    with S3Server() as server:
        yield server


@pytest.fixture
def daemons(s3: S3Server, short_dir: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Daemon]]:
    """Start daemons against the S3 server; at the end all hold nothing any more and leave with exit code 0.

    A dataset that a test leaves behind unreferenced counts as gone; what a failed test leaves behind is no news.
    """
    started: list[Daemon] = []

    def start(name: str = "d", **options: Any) -> Daemon:
        home = short_dir / name
        home.mkdir(exist_ok=True)
        started.append(Daemon(home, options.pop("endpoint", s3.url), **options))
        return started[-1].start()

    with ExitStack() as stack:
        yield start
        for daemon in started:
            stack.callback(daemon.end)
            if not request.node.stash.get(FAILED, False):
                stack.callback(daemon.leave)


@pytest.fixture
def nothing_shared() -> Iterator[None]:
    """Nothing is in shared memory after the test that was not there before."""
    names, memfd_count = shared_memory()
    yield
    deadline = time.monotonic() + 10
    while (now := shared_memory())[0] - names or now[1] > memfd_count:
        assert time.monotonic() < deadline, (now[0] - names, memfd_count, now[1])
        time.sleep(0.1)
