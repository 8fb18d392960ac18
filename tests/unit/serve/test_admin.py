from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from feedd import __version__
from feedd.errors import BadRequest, CacheTooSmall, Draining, FeeddError, NotFound, PermissionDenied, Unsupported
from feedd.serve.admin_client import daemon_at
from feedd.serve.server_options import CacheRow, CacheState, ServeHooks, ServeOptions, StatSample
from feedd.serve.tickets import OWNER_GREETING, TICKET_BYTES, TICKET_HEADER
from feedd.warming import Amount, WarmProgress, WarmSpec
from feedd.wire import feedd_pb2 as pb
from tests.unit.serve.raw_client import WAIT_S, error_of, open_request, serving

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.serve.server_options import Tell


async def test_stats_say_state_and_samples(short_dir: Path) -> None:
    """Stats answers version, daemon, sessions of the moment and what the daemon measures."""
    hooks = ServeHooks(samples=lambda: [StatSample("feedd_x_total", {"op": "get"}, 3.0)])
    async with serving(short_dir, hooks=hooks) as rig:
        await rig.open()
        stats = await rig.admin.Stats(pb.StatsRequest(), timeout=WAIT_S)
        assert (stats.state, stats.version, stats.sessions) == ("ready", __version__, 1)
        assert stats.daemon_id == rig.server.daemon_id
        assert stats.uptime_s > 0
        assert list(stats.samples) == [pb.Sample(name="feedd_x_total", labels={"op": "get"}, value=3.0)]


async def test_cache_entries_are_streamed(short_dir: Path) -> None:
    """CacheList gives one message per entry; a daemon without a cache gives none."""
    hooks = ServeHooks(cache_entries=lambda: [CacheRow(f"s3://b/{i}", "e", i, 0) for i in range(3)])
    async with serving(short_dir, hooks=hooks) as rig:
        entries = [entry async for entry in rig.admin.CacheList(pb.CacheListRequest(), timeout=WAIT_S)]
        assert [(e.url, e.size_bytes) for e in entries] == [("s3://b/0", 0), ("s3://b/1", 1), ("s3://b/2", 2)]
    async with serving(short_dir) as rig:
        assert [entry async for entry in rig.admin.CacheList(pb.CacheListRequest(), timeout=WAIT_S)] == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("text+s3://b/train/", ["s3://b/train/x"]),
        ("{s3://b/train/,s3://b/train/}", []),
        ("s{3,3}://b/train/", []),
        ("s3://b/tra{in,in}/", []),
        ("/data/x+", []),
    ],
)
async def test_a_client_sees_what_it_reads(short_dir: Path, url: str, shown: list[str]) -> None:
    """Of the cache, a client sees what is below its URLs. Braces could stand for less than what is before them."""
    rows = [CacheRow(url, "e", 1, 0) for url in ("s3://b/train/x", "s3://b/train-private/x", "file:///data/y")]
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), socket_mode=0o660)
    async with serving(short_dir, None, options, ServeHooks(cache_entries=lambda: rows)) as rig:
        reader, writer = await asyncio.open_unix_connection(f"{short_dir}/feedd.sock.arena")
        writer.write(OWNER_GREETING)
        headers = ((TICKET_HEADER, (await reader.readexactly(1 + TICKET_BYTES))[1:]),)
        await rig.feed.Open(open_request(urls=[url]), timeout=WAIT_S, metadata=headers)
        listed = rig.admin.CacheList(pb.CacheListRequest(), timeout=WAIT_S, metadata=headers)
        assert [entry.url async for entry in listed] == shown
        writer.close()


async def test_a_failing_hook_is_that_calls_error(short_dir: Path) -> None:
    """An error of the daemon's part becomes a status; the server lives on."""

    def fail() -> list[CacheRow]:
        raise PermissionDenied("expected a readable cache, got none", object="/cache")

    async with serving(short_dir, hooks=ServeHooks(cache_entries=fail)) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            _ = [entry async for entry in rig.admin.CacheList(pb.CacheListRequest(), timeout=WAIT_S)]
        assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert error_of(failure.value).object == "/cache"
        await rig.open()


async def test_drain_is_handed_on(short_dir: Path) -> None:
    """Drain answers at once and tells the daemon the grace; nonsense is refused."""
    asked: list[float] = []
    async with serving(short_dir, hooks=ServeHooks(drain=asked.append)) as rig:
        await rig.admin.Drain(pb.DrainRequest(grace_s=2.5), timeout=WAIT_S)
        for grace_s in (-1.0, float("nan"), float("inf"), 1e9):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await rig.admin.Drain(pb.DrainRequest(grace_s=grace_s), timeout=WAIT_S)
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert asked == [2.5]


async def test_drain_without_a_daemon_is_unsupported(short_dir: Path) -> None:
    """A server nobody can drain says so."""
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.admin.Drain(pb.DrainRequest(), timeout=WAIT_S)
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_stats_tell_of_the_cache(short_dir: Path) -> None:
    """The cache of the moment comes with the numbers; a daemon without one says nothing of it."""
    state = CacheState("/cache", 9, 1, 5, 2, entry_count=3, pin_count=4)
    hooks = ServeHooks(cache_state=lambda: state)
    async with serving(short_dir, hooks=hooks) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        assert await daemon.cache_state() == state
    async with serving(short_dir) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        assert await daemon.cache_state() is None


async def test_removal_is_handed_on(short_dir: Path) -> None:
    """The pattern arrives, and what went and what stayed comes back; without a cache it is unsupported."""
    asked: list[str] = []

    async def remove(pattern: str) -> tuple[Amount, Amount]:
        asked.append(pattern)
        return Amount(2, 20), Amount(1, 10)

    hooks = ServeHooks(cache_remove=remove)
    async with serving(short_dir, hooks=hooks) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        assert await daemon.remove("s3://b/*") == (Amount(2, 20), Amount(1, 10))
    assert asked == ["s3://b/*"]
    async with serving(short_dir) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        with pytest.raises(Unsupported, match="has no cache"):
            await daemon.remove("")


async def test_warming_tells_as_it_goes(short_dir: Path) -> None:
    """Spec and progress arrive whole; every error comes once, with its class, however many there are."""
    spec = WarmSpec(("s3://b/x/",), 4, 3, "size", fit=True, fields=(("user", "int"), ("x", "float")))
    end = WarmProgress(Amount(1000, 10), Amount(1, 1), Amount(2, 2), Amount(3, 3), Amount(994, 4))

    async def warm(asked: WarmSpec, tell: Tell) -> None:
        assert asked == spec
        tell(WarmProgress(Amount(1000, 10)), None)
        await asyncio.sleep(0)
        for number in range(994):
            tell(end, PermissionDenied("expected leave, got none", object=f"s3://b/x/{number}", hint="ask"))

    got: list[WarmProgress] = []
    failures: list[FeeddError] = []

    def tell(progress: WarmProgress, failure: FeeddError | None) -> None:
        got.append(progress)
        if failure is not None:
            failures.append(failure)

    async with serving(short_dir, hooks=ServeHooks(warm=warm)) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        assert await daemon.warm(spec, tell) == end
    assert got[-1] == end
    assert [one.object for one in failures] == [f"s3://b/x/{number}" for number in range(994)]
    assert {(type(one), one.message, one.hint) for one in failures} == {
        (PermissionDenied, "expected leave, got none", "ask")
    }


async def test_warming_ends_with_its_client(short_dir: Path) -> None:
    """A client that goes away cancels the warming; its errors, and nonsense, reach the client as they are."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def warm(asked: WarmSpec, tell: Tell) -> None:
        if asked.fit:
            raise CacheTooSmall("expected room, got none", object="/cache", hint="more")
        try:
            tell(WarmProgress(Amount(1, 1)), None)
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(short_dir, hooks=ServeHooks(warm=warm)) as rig, daemon_at(rig.server.addresses[0]) as daemon:
        run = asyncio.ensure_future(daemon.warm(WarmSpec(("s3://b/x/",)), lambda *_: None))
        await asyncio.wait_for(started.wait(), WAIT_S)
        run.cancel()
        await asyncio.wait((run,))
        await asyncio.wait_for(ended.wait(), WAIT_S)
        with pytest.raises(CacheTooSmall, match="expected room") as failure:
            await daemon.warm(WarmSpec(("s3://b/x/",), fit=True), lambda *_: None)
        assert (failure.value.object, failure.value.hint) == ("/cache", "more")
        for spec in (WarmSpec(()), WarmSpec(("s3://b/",), 2, 2)):
            with pytest.raises(BadRequest):
                await daemon.warm(spec, lambda *_: None)
        rig.server.sessions.draining = True
        with pytest.raises(Draining):
            await daemon.warm(WarmSpec(("s3://b/x/",)), lambda *_: None)


async def test_nobody_at_the_address(short_dir: Path) -> None:
    """Asking where no daemon is says so."""
    async with daemon_at(f"unix://{short_dir}/none.sock") as daemon:
        with pytest.raises(NotFound, match="no daemon answers"):
            await daemon.cache_state()
