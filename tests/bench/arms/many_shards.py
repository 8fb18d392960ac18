"""Arm: a real daemon over a bucket of any number of shards: what it costs to open, to plan an epoch, and to stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from feedd_client import shm
from feedd_client._version import PROTOCOL_MAJOR
from feedd_client._wire import feedd_pb2 as pb
from feedd_client._wire import feedd_pb2_grpc
from tests.bench.arms import daemon

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SETTLE_S = 0.3
_LOOK_S = 0.02
_EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU seconds of a daemon: of its event loop's thread, and of all its threads."""

    loop_s: float
    whole_s: float

    @classmethod
    def of(cls, pid: int) -> _Spent:
        loop_ns = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(loop_ns * 1e-9, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)

    def since(self, before: _Spent) -> _Spent:
        return _Spent(self.loop_s - before.loop_s, self.whole_s - before.whole_s)


class _Watch:
    """Looks at a daemon all the time: its anonymous memory, and how long its health service takes to answer."""

    def __init__(self, pid: int, channel: grpc.aio.Channel) -> None:
        self._pid = pid
        self._stub = health_pb2_grpc.HealthStub(channel)
        self.peak_bytes = 0
        self.answer_s = 0.0

    def anonymous_bytes(self) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

    async def run(self) -> None:
        while True:
            asked_s = time.perf_counter()
            await self._stub.Check(health_pb2.HealthCheckRequest())
            self.answer_s = max(self.answer_s, time.perf_counter() - asked_s)
            self.peak_bytes = max(self.peak_bytes, self.anonymous_bytes())
            await asyncio.sleep(_LOOK_S)


class _Rank:
    """The only rank of a job; takes leases and gives them back at once."""

    def __init__(self, stub: feedd_pb2_grpc.FeedStub, settings: dict[str, Any]) -> None:
        self._stub = stub
        self._settings = settings
        self.granted = pb.OpenResponse()
        self._mapping: object = None

    async def open(self, fingerprint: bytes = b"") -> None:
        settings = self._settings
        fields = [pb.Field(name=settings.get("field_name", "tokens"), recipe=settings["field"])]
        self.granted = await self._stub.Open(
            pb.OpenRequest(
                version=pb.ProtocolVersion(major=PROTOCOL_MAJOR),
                urls=[settings["url"]],
                recipe=pb.Recipe(fields=fields, batch_size=settings["batch_size"]),
                topology=pb.Topology(world_size=1, local_world_size=1, node_count=1),
                shuffle=pb.Shuffle(enabled=True, window_shards=settings["window_shards"]),
                uneven="allow",
                expect_fingerprint=fingerprint,
                prefetch_batches=settings["prefetch"],
                runs=True,
            )
        )
        arena = self.granted.arena
        self._mapping = shm.attach(arena.socket_path, arena.token, arena.size_bytes, private=False)

    async def close(self) -> None:
        self._mapping = None
        await self._stub.Close(pb.CloseRequest(session_id=self.granted.session_id))

    async def stream(self, epoch: int) -> AsyncGenerator[int, None]:
        """Yield the number of batches that have come so far, until the epoch ends or the caller has enough."""
        call, batches = self._stub.Stream(), 0
        start = pb.StreamStart(session_id=self.granted.session_id, next=pb.Cursor(epoch=epoch), held=pb.HeldLeases())
        await call.write(pb.StreamRequest(start=start, credits=self.granted.slot_count))
        try:
            while True:
                response = await call.read()
                if response is _EOF or response.HasField("end"):
                    return
                assert not response.HasField("error"), response.error
                if not response.batches:
                    continue
                batches += sum(1 + one.alike + len(one.more) for one in response.batches)
                yield batches
                releases = [pb.Release(slot=one.slot, generation=one.generation) for one in response.batches]
                await call.write(pb.StreamRequest(credits=len(releases), releases=releases))
        finally:
            call.cancel()

    async def take(self, epoch: int, count: int) -> tuple[float, int]:
        """Stream ``count`` batches of an epoch, or all; return when the first came, and how many did."""
        first_s, batches = 0.0, 0
        async with contextlib.aclosing(self.stream(epoch)) as found:
            async for batches in found:
                first_s = first_s or time.perf_counter()
                if batches >= count:
                    break
        assert batches, f"expected batches of epoch {epoch}, got none"
        return first_s, batches


async def _measured(pid: int, address: str, settings: dict[str, Any]) -> dict[str, Any]:
    count, row = settings["batches"], dict[str, Any]()
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as group:
        rank = _Rank(feedd_pb2_grpc.FeedStub(channel), settings)  # type: ignore[no-untyped-call]  # generated
        watch = _Watch(pid, channel)
        row["idle_bytes"] = watch.anonymous_bytes()
        watching = group.create_task(watch.run())
        await asyncio.sleep(_SETTLE_S)
        row |= await _opened(pid, rank, "first")
        watch_s = watch.answer_s
        row |= await _streamed(pid, rank, count, "cold")
        await asyncio.sleep(_SETTLE_S)
        row |= {"open_answer_s": watch_s, "held_bytes": watch.anonymous_bytes(), "peak_bytes": watch.peak_bytes}
        fingerprint = rank.granted.fingerprint
        await rank.close()
        watch.answer_s = 0.0
        row |= await _opened(pid, rank, "again", fingerprint)
        row["again_answer_s"] = watch.answer_s
        row |= await _streamed(pid, rank, count, "warm")
        await asyncio.sleep(_SETTLE_S)
        watch.answer_s = 0.0
        row |= await _streamed(pid, rank, 1, "next", epoch=1)
        row |= {"next_answer_s": watch.answer_s, "end_bytes": watch.anonymous_bytes()}
        row["answer_s"] = max(row["open_answer_s"], row["again_answer_s"], row["next_answer_s"])
        watching.cancel()
    return row


async def _opened(pid: int, rank: _Rank, name: str, fingerprint: bytes = b"") -> dict[str, float]:
    """Open; then one batch."""
    before, asked, began_s = _Spent.of(pid), _asked(), time.perf_counter()
    await rank.open(fingerprint)
    opened, opened_s = _Spent.of(pid).since(before), time.perf_counter() - began_s
    now = _asked()
    first_s, _ = await rank.take(0, 1)
    return {
        f"{name}_open_s": opened_s,
        f"{name}_open_cpu_s": opened.whole_s,
        f"{name}_open_loop_s": opened.loop_s,
        f"{name}_batch_s": first_s - began_s,
        f"{name}_listing_count": now - asked,
    }


def _asked() -> int:
    """Return how many requests the server has answered that were not for shards."""
    with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/__stats", timeout=10) as response:
        found: int = json.load(response)["beside_count"]
        return found


async def _streamed(pid: int, rank: _Rank, count: int, name: str, epoch: int = 0) -> dict[str, float]:
    before, began_s = _Spent.of(pid), time.perf_counter()
    first_s, batches = await rank.take(epoch, count)
    spent, took_s = _Spent.of(pid).since(before), time.perf_counter() - began_s
    return {
        f"{name}_first_s": first_s - began_s,
        f"{name}_batches": batches,
        f"{name}_batches_per_s": batches / took_s,
        f"{name}_cpu_s": spent.whole_s,
        f"{name}_loop_s": spent.loop_s,
        f"{name}_loop_us": 1e6 * spent.loop_s / batches,
        f"{name}_cpu_us": 1e6 * spent.whole_s / batches,
    }


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    child, address = daemon.start(settings)
    try:
        daemon.wait_ready(child, address)
        time.sleep(_SETTLE_S)
        row = asyncio.run(_measured(child.pid, address.replace("unix://", "unix:"), settings))
    finally:
        daemon.stop(child)
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
