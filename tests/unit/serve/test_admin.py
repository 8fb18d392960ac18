from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from feedd import __version__
from feedd.errors import PermissionDenied
from feedd.serve.options import CacheRow, ServeHooks, StatSample
from feedd.wire import feedd_pb2 as pb
from tests.unit.serve.raw_client import WAIT_S, error_of, serving

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("unix:", True),
        ("ipv4:127.0.0.1:5", True),
        ("ipv6:%5B::1%5D:5", True),
        ("ipv6:[::1]:5", True),
        ("ipv4:10.0.0.1:5", False),
    ],
)
async def test_only_this_machine_may_drain(short_dir: Path, peer: str, local: bool) -> None:
    """A peer beyond loopback cannot send the daemon away."""
    asked: list[float] = []
    async with serving(short_dir, hooks=ServeHooks(drain=asked.append)) as rig:
        admin = rig.server._admin
        if local:
            admin._drain(1.0, peer)
        else:
            with pytest.raises(PermissionDenied, match="this machine"):
                admin._drain(1.0, peer)
    assert asked == ([1.0] if local else [])
    await asyncio.sleep(0)
