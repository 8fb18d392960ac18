"""Fixtures of the end-to-end tests: one S3 server, daemons on demand."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import PATIENT_S
from tests.conftest import FAILED
from tests.e2e.daemon import Daemon
from tests.e2e.leftovers import shared_memory
from tests.fakes.cuda.fixture import devices
from tests.fakes.forks import keep_no_listing
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

cuda = devices("eager", "random-0")  # the others: tests/unit/client


@pytest.fixture(scope="session", autouse=True)
def _forks(forks: None) -> None:
    """Daemons and trainers are forked."""


@dataclass(frozen=True)
class Standing:
    """A server and a daemon for all tests of a file; between two tests the server forgets everything.

    Attributes:
        server: the store.
        daemon: what ``daemons`` gives where a test asks for one like it.
        options: what that one was started with.
    """

    server: S3Server
    daemon: Daemon
    options: Mapping[str, Any]


@pytest.fixture(scope="module")
def one_daemon(request: pytest.FixtureRequest) -> Iterator[Standing]:
    """For files whose tests read, and leave the daemon as they found it: they say so with ``usefixtures``.

    ``STANDING`` in such a file holds the options of its daemon.
    """
    options: dict[str, Any] = getattr(request.module, "STANDING", {})
    with (
        TemporaryDirectory(prefix="fd-", dir="/tmp") as home,
        S3Server() as server,
        Daemon(Path(home), server.url, before=keep_no_listing, **options) as daemon,
    ):
        yield Standing(server, daemon, options)


def _standing(request: pytest.FixtureRequest) -> Standing | None:
    return request.getfixturevalue("one_daemon") if "one_daemon" in request.fixturenames else None


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """An empty S3 server."""
    shared = _standing(request)
    if shared is None:
        with S3Server() as server:
            yield server
    else:
        yield shared.server
        shared.server.forget()  # and hang up: the connections are descriptors of this process


@pytest.fixture
def daemons(s3: S3Server, short_dir: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Daemon]]:
    """Start daemons against the S3 server; at the end all hold nothing any more and leave with exit code 0.

    The first one may be the standing one. What a failed test leaves behind is no news.
    """
    shared = _standing(request)
    started: list[Daemon] = []

    def start(name: str = "d", **options: Any) -> Daemon:
        if shared is not None and name == "d" and {"workers": 1, **options} == {"workers": 1, **shared.options}:
            return shared.daemon
        home = short_dir / name
        home.mkdir(exist_ok=True)
        started.append(Daemon(home, options.pop("endpoint", s3.url), **options))
        return started[-1].start()

    with ExitStack() as stack:
        yield start
        passed = not request.node.stash.get(FAILED, False)
        for daemon in started:
            stack.callback(daemon.end)
            stack.callback(daemon.leave if passed else daemon.tell)
        if shared is not None and passed:
            shared.daemon.settle()


@pytest.fixture
def nothing_shared() -> Iterator[None]:
    """Nothing is in shared memory after the test that was not there before."""
    names, memfd_count = shared_memory()
    yield
    deadline = time.monotonic() + PATIENT_S
    while (now := shared_memory())[0] - names or now[1] > memfd_count:
        assert time.monotonic() < deadline, (now[0] - names, memfd_count, now[1])
        time.sleep(0.1)
