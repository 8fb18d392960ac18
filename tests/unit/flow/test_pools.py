"""Named, bounded pools of threads."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from feedd.flow import pools
from feedd.flow.pools import Pool
from tests.fakes.fetchers import until
from tests.fakes.raw_server import RawServer
from tests.fakes.sinks import into

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = """
import asyncio, sys, threading, time
from feedd.flow import pools

pool, work_s, limit_s = sys.argv[1:]
begun = threading.Event()

def work() -> None:
    begun.set()
    time.sleep(float(work_s))  # as a disk may take
    print("done", flush=True)

async def main() -> None:
    working = getattr(pools, pool).begin(work)
    begun.wait()

pools._END_S = float(limit_s)
asyncio.run(main())
"""
VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Holds up whoever waits for it until the test ends."""
    event = threading.Event()
    yield event
    event.set()


async def test_results_errors_and_context_come_as_from_a_call() -> None:
    """Work sees the caller's context, and what it returns or raises is the caller's."""
    pool = Pool("test", 1)
    VARIABLE.set("mine")
    assert await pool.run(VARIABLE.get) == "mine"
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 7, 0)
    assert await pool.run(lambda: threading.current_thread().name) == "feedd-pool-test-0"


async def test_never_more_threads_than_the_bound(held: threading.Event) -> None:
    """Work beyond the bound waits in line, and is done in its turn."""
    pool, running, most = Pool("test", 3), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        held.wait(20)
        with lock:
            running -= 1

    jobs = [asyncio.ensure_future(pool.run(work)) for _ in range(12)]
    await until(lambda: running == 3)
    assert "3/3 threads, 9 jobs waiting" in repr(pool)
    held.set()
    await asyncio.gather(*jobs)
    assert most == 3


async def test_cancelled_work_that_has_not_begun_is_dropped(held: threading.Event) -> None:
    """Whoever leaves a line leaves it empty, however long it was."""
    pool, started = Pool("test", 1), 0

    def work() -> None:
        nonlocal started
        started += 1

    first = asyncio.ensure_future(pool.run(held.wait, 20))
    for _ in range(5):
        rest = [asyncio.ensure_future(pool.run(work)) for _ in range(200)]
        await asyncio.sleep(0)
        for job in rest:
            job.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        assert len(pool._jobs) <= 600
    held.set()
    assert await first
    await pool.run(work)
    assert started == 1


async def test_without_threads_the_caller_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system starts no thread the call fails, and the pool works as soon as it does again."""
    pool = Pool("test", 2)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await pool.run(int)
    assert await pool.run(int) == 0


async def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is not used holds no thread, and has one again when it is."""
    monkeypatch.setattr(pools, "_IDLE_S", 0.001)
    pool = Pool("test", 2)
    await asyncio.gather(pool.run(int), pool.run(int))
    await until(lambda: "0/2 threads" in repr(pool))
    assert await pool.run(int) == 0


async def test_a_resolver_that_hangs_stops_only_who_waits_for_it(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more look-ups hanging than there are threads for them, other pools work and known hosts are reached."""
    asked = 0

    def hang(*_: object, **__: object) -> list[object]:
        nonlocal asked
        asked += 1
        held.wait(20)
        raise socket.gaierror("nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    options = SourceOptions(connect_timeout_s=20.0, parts_in_flight=4, hedge_share=0.0)
    unknown = ConnectionPool(Endpoint("http://nowhere.test", "nowhere.test", 80, None), options)
    waiting = [asyncio.ensure_future(unknown.request(b"", into(bytearray(1)), lambda _: None)) for _ in range(4)]
    lookups = [asyncio.ensure_future(pools.DNS.run(hang)) for _ in range(2 * pools.DNS.threads_max)]
    await until(lambda: asked == pools.DNS.threads_max)
    for pool in (pools.CPU, pools.CACHE_DISK, pools.LOCAL_FILES):
        assert await pool.run(int) == 0
    async with RawServer(b"HTTP/1.1 206 OK\r\nContent-Length: 5\r\n\r\nbytes") as server:
        known = ConnectionPool(Endpoint(f"http://127.0.0.1:{server.port}", "127.0.0.1", server.port, None), options)
        target = memoryview(bytearray(5))
        await known.request(b"GET / HTTP/1.1\r\n\r\n", into(target), lambda _: None)
        assert bytes(target) == b"bytes"
        await known.aclose()
    for job in (*waiting, *lookups):
        job.cancel()
    await asyncio.gather(*waiting, *lookups, return_exceptions=True)
    await unknown.aclose()


@pytest.mark.parametrize(
    ("pool", "work_s", "limit_s", "printed"),
    [
        ("CPU", 0.3, 30.0, "done\n"),
        ("LOCAL_FILES", 0.3, 30.0, "done\n"),
        ("LOCAL_FILES", 600.0, 0.05, ""),
        ("DNS", 600.0, 30.0, ""),
    ],
)
def test_a_process_ends_after_its_threads_unless_they_hang(
    pool: str, work_s: float, limit_s: float, printed: str
) -> None:
    """A thread that loads certificates must not see OpenSSL's end; one that a disk or a resolver delays may."""
    arguments = [sys.executable, "-c", ENDING, pool, str(work_s), str(limit_s)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)  # less than 600 s
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
