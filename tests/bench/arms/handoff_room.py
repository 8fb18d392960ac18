"""The daemon's side of the hand-off arm: the real serve room, over a backend whose batches are always ready."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import uvloop

from feedd.clock import SystemClock
from feedd.flow.arena import Arena
from feedd.observe.logs import configure_logging
from feedd.observe.recorder import PrometheusRecorder
from feedd.serve.grpc_server import FeedServer
from feedd.serve.server_options import ServeOptions
from feedd.sessions.slot_counts import slots_for
from feedd.values import BatchReady, Cursor, EpochEnd, FieldKind, Produced, Region, SessionInfo, SlotRef, TensorSpec

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from feedd.open_spec import OpenSpec


@dataclass(slots=True)
class ReadySession:
    """Every batch lies in its slot already: each slot is written once, when it is first used."""

    spec: TensorSpec
    rows: int
    arena: Arena
    _written: set[int] = field(default_factory=set)

    @property
    def info(self) -> SessionInfo:
        """One field, no known end."""
        return SessionInfo((self.spec,), bytes(16), shard_count=1, assigned_shard_count=1, assigned_bytes=0)

    @property
    def slots(self) -> Arena:
        """The arena."""
        return self.arena

    def client_mapping(self) -> AbstractContextManager[int]:
        """Of the arena."""
        return self.arena.client_mapping()

    def retain_leased(self) -> None:
        """Nobody else writes to the arena."""

    async def prepare(self, at: Cursor) -> None:
        """Batches are ready at once."""

    def steps(self, epoch: int) -> int | None:
        """No known end."""
        return None

    @property
    def stage(self) -> str:
        """Nothing waits."""
        return "decoding"

    async def produce(self, at: Cursor, count: int = 1) -> Produced | EpochEnd:
        """Answer at once; slots hold single batches."""
        assert count == 1, f"{count} steps from {at.step} in one slot"
        return self._produce(at)

    def release(self, slot: SlotRef) -> None:
        """Free it."""
        self.arena.give_back(slot)

    def _produce(self, at: Cursor) -> Produced:
        slot = self.arena.take()
        assert slot is not None, "more batches are asked for than there are slots"
        size_bytes = self.rows * math.prod(self.spec.shape) * np.dtype(self.spec.dtype).itemsize
        if slot.index not in self._written:
            self._written.add(slot.index)
            np.frombuffer(self.arena.view(slot)[:size_bytes], self.spec.dtype)[:] = 7
        return Produced(BatchReady(at, self.rows, (Region(0, size_bytes),), size_bytes), slot)

    async def close(self) -> None:
        """Give the arena back."""
        self.arena.close()


@dataclass(frozen=True, slots=True)
class ReadyBackend:
    """Opens ``ReadySession``s."""

    spec: TensorSpec
    slot_bytes: int

    async def open(self, spec: OpenSpec) -> ReadySession:
        """Allocate an arena of as many slots as the daemon chooses."""
        return ReadySession(
            self.spec, spec.order.batch_size, await Arena.create(slots_for(self.slot_bytes), self.slot_bytes)
        )


async def _serve(socket: str, shape: list[int], dtype: str) -> None:
    spec = TensorSpec("data", FieldKind.DENSE, dtype, tuple(shape[1:]))
    backend = ReadyBackend(spec, math.prod(shape) * np.dtype(dtype).itemsize)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options = ServeOptions(listen=(f"unix://{socket}",))
    async with FeedServer(backend, options, PrometheusRecorder(), SystemClock()):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    """Serve until SIGTERM."""
    settings = json.loads(sys.argv[1])
    configure_logging("text", "warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings["socket"], settings["shape"], settings["dtype"]))


if __name__ == "__main__":
    main()
