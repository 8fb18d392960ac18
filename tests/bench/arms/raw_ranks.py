"""Ranks without a trainer: streams that take leases and give them back at once, many in one process.

They cost a tenth of what a trainer's client costs, so that a daemon can be measured under 64 of them on a few cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import grpc

from feedd_client import shm
from feedd_client._version import PROTOCOL_MAJOR
from feedd_client._wire import feedd_pb2 as pb
from feedd_client._wire import feedd_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

_READY_BATCHES = 2
_EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class Rank:
    """One rank of one job; whole epochs, one after another, until it is cancelled."""

    def __init__(self, stub: feedd_pb2_grpc.FeedStub, settings: dict[str, Any], rank: int) -> None:
        self.batches = 0
        self._stub = stub
        self._settings = settings
        self._rank = rank

    async def run(self, ready: Callable[[], None]) -> None:
        """Open and stream; ``ready`` is called once some batches have come."""
        settings, ranks = self._settings, self._settings["rank_count"]
        granted = await self._stub.Open(
            pb.OpenRequest(
                version=pb.ProtocolVersion(major=PROTOCOL_MAJOR),
                urls=[settings["url"]],
                recipe=pb.Recipe(
                    fields=[pb.Field(name="tokens", recipe=settings["field"])], batch_size=settings["batch_size"]
                ),
                topology=pb.Topology(
                    world_size=ranks,
                    rank=self._rank,
                    local_world_size=ranks,
                    local_rank=self._rank,
                    node_count=1,
                    node_rank=0,
                ),
                shuffle=pb.Shuffle(enabled=True, window_shards=settings["window_shards"]),
                sharding=settings["sharding"],
                partitions=settings["partitions"],
                uneven="drop",
                prefetch_batches=settings["prefetch"],
                runs=True,
            )
        )
        arena = granted.arena
        mapping = shm.attach(arena.socket_path, arena.token, arena.size_bytes, private=False)
        epoch = 0
        while True:
            await self._epoch(granted, epoch, ready)
            epoch += 1
            assert mapping is not None

    async def _epoch(self, granted: pb.OpenResponse, epoch: int, ready: Callable[[], None]) -> None:
        call = self._stub.Stream()
        start = pb.StreamStart(session_id=granted.session_id, next=pb.Cursor(epoch=epoch), held=pb.HeldLeases())
        await call.write(pb.StreamRequest(start=start, credits=granted.slot_count))
        while True:
            response = await call.read()
            if response is _EOF or response.HasField("end"):
                break
            assert not response.HasField("error"), response.error
            if not response.batches:
                continue
            releases = [pb.Release(slot=one.slot, generation=one.generation) for one in response.batches]
            count = sum(1 + one.alike + len(one.more) for one in response.batches)
            before, self.batches = self.batches, self.batches + count
            if before < _READY_BATCHES <= self.batches:
                ready()
            await call.write(pb.StreamRequest(credits=len(releases), releases=releases))
        await call.done_writing()
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not _EOF:
                pass


async def _run(settings: dict[str, Any]) -> None:
    address = settings["address"].replace("unix://", "unix:")
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as group:
        stub = feedd_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]  # generated
        ranks = [Rank(stub, settings, rank) for rank in settings["ranks"]]
        waiting = len(ranks)
        all_ready = asyncio.Event()

        def ready() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                all_ready.set()

        tasks = [group.create_task(rank.run(ready)) for rank in ranks]
        await all_ready.wait()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        # each line of the parent's is answered with the batches so far; its end ends everything
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(f"{sum(rank.batches for rank in ranks)}\n")
            sys.stdout.flush()
        for task in tasks:
            task.cancel()


def main() -> None:
    """Run."""
    asyncio.run(_run(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
