"""The reader on uvloop, the daemon's loop: whatever the loop, the same bytes and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from feedd.errors import StoreUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3.connection import LazyTimer
from feedd.fetch.s3.store import S3Store
from feedd.values import ByteRange, ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.forward_proxy import ForwardProxy
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.slow  # over a real server

DATA = bytes(range(251)) * 40_000
FAULTS = {
    "reset in body": fault.reset_in_body(5_000_000),
    "cut": fault.cut_body(5_000_000),
    "longer": fault.extra_bytes(10),
    "hang": fault.hang_in_body(5_000_000),
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Let libuv make what it keeps for the whole process before anybody counts descriptors."""
    uvloop.run(asyncio.sleep(0))
    gc.collect()


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[S3Server, SourceOptions, ObjectRef]]:
    """Start a server with one object, and say how to reach it."""
    authority = Authority(tmp_path)
    with S3Server(cert=authority.issue("store") if request.param == "https" else None) as running:
        etag = running.put("bucket", "key", DATA)
        access = S3Options(endpoint_url=running.url, anonymous=True, ca_bundle=str(authority.ca_path))
        options = SourceOptions(
            s3={"*": access}, connect_timeout_s=2, read_timeout_s=1.0
        )  # of silence, on a busy machine
        yield running, options, ObjectRef("s3://bucket", "key", len(DATA), etag)


@contextlib.asynccontextmanager
async def _opened(options: SourceOptions) -> AsyncIterator[S3Store]:
    store = S3Store("bucket", options)
    try:
        yield store
    finally:
        await store.close()


async def _read(store: S3Store, ref: ObjectRef, start: int, end: int) -> bool:
    target = bytearray(end - start)
    await store.read_into(ref, ByteRange(start, end), into(target))
    return target == DATA[start:end]


def test_ranges_at_the_same_time(server: tuple[S3Server, SourceOptions, ObjectRef]) -> None:
    """Many ranges of all lengths arrive exactly over few connections."""
    _, options, ref = server

    async def run() -> list[bool]:
        async with _opened(replace(options, parts_in_flight=2)) as store:
            spans = [(at, min(len(DATA), at + 1 + at % 700_000)) for at in range(0, len(DATA), 333_333)]
            return await asyncio.gather(*(_read(store, ref, *span) for span in spans * 3))

    assert all(uvloop.run(run()))


@pytest.mark.parametrize("bad", FAULTS.values(), ids=FAULTS.keys())
def test_faults(server: tuple[S3Server, SourceOptions, ObjectRef], bad: fault.Fault) -> None:
    """A broken answer is an error that leaves the target free, and the store usable."""
    running, options, ref = server

    async def run() -> bool:
        async with _opened(options) as store:
            assert await _read(store, ref, 0, 1000)
            running.script("bucket", "key", bad)
            target = bytearray(len(DATA))
            with pytest.raises(StoreUnavailable):
                await store.read_into(ref, ByteRange(0, len(DATA)), into(target))
            target.clear()
            return await _read(store, ref, 0, len(DATA))

    assert uvloop.run(run())


@pytest.mark.parametrize("pause_s", [0, 0.001, 0.01, 0.03])
def test_cancelled(server: tuple[S3Server, SourceOptions, ObjectRef], pause_s: float) -> None:
    """After a cancelled read nothing is written any more, and the memory is free at once."""
    running, options, ref = server
    running.script("bucket", "key", None, *[fault.drip(50_000_000)] * 4)

    async def run() -> bool:
        async with _opened(options) as store:
            assert await _read(store, ref, 0, 1000)
            target = bytearray(len(DATA))
            task = asyncio.ensure_future(store.read_into(ref, ByteRange(0, len(DATA)), into(target)))
            await asyncio.sleep(pause_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            found = bytes(target)
            await asyncio.sleep(0.05)
            assert target == found
            assert not target.endswith(DATA[-1:]), "expected to be cancelled before the end"
            del task
            target.clear()
            return await _read(store, ref, 0, 1000)

    assert uvloop.run(run())


def test_a_timer_that_is_due_at_once_can_be_moved() -> None:
    """The handle of such a timer does not tell its time."""

    async def run() -> None:
        loop, fired = asyncio.get_running_loop(), asyncio.Event()
        timer = LazyTimer(fired.set)
        timer.set(loop.time())
        timer.set(loop.time() - 1.0)
        async with asyncio.timeout(PATIENT_S):
            await fired.wait()

    uvloop.run(run())


def test_a_body_through_a_proxy(
    server: tuple[S3Server, SourceOptions, ObjectRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On uvloop, too, a tunnel hands its transport over, also if the proxy has TLS of its own."""
    running, options, ref = server
    (tmp_path / "proxy").mkdir()
    authority = Authority(tmp_path / "proxy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("proxy"))
    bundle = tmp_path / "both.pem"
    bundle.write_bytes(authority.ca_path.read_bytes() + Path(options.s3["*"].ca_bundle or "").read_bytes())
    options = replace(options, s3={"*": replace(options.s3["*"], ca_bundle=str(bundle))}, read_timeout_s=PATIENT_S)

    async def through(tls: ssl.SSLContext | None) -> None:
        async with ForwardProxy(int(running.url.rpartition(":")[2]), tls) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("https_proxy", proxy.url)
            target = bytearray(len(DATA))
            store = S3Store("bucket", options)
            try:
                await store.read_into(ref, ByteRange(0, len(DATA)), into(target))
            finally:
                await store.close()
            assert target == DATA
            assert proxy.heads

    monkeypatch.delenv("no_proxy", raising=False)
    for tls in (None, context):
        uvloop.run(through(tls))
