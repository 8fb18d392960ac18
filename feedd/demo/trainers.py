"""Trainer processes: each prints one JSON line per event, and reads one line per permission to continue."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedd.demo.processes import start
from feedd.errors import FeeddError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AsyncExitStack


@dataclass(slots=True)
class Trainer:
    """One rank's trainer process."""

    rank: int
    process: asyncio.subprocess.Process
    samples: int = 0

    async def ready(self) -> None:
        """Wait until the rank is at the start of an epoch."""
        while (await self._event())["event"] != "ready":
            pass

    async def epoch(self, moved: Callable[[], None]) -> dict[str, Any]:
        """Let the rank train one epoch; return its ``epoch`` event."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        await self.process.stdin.drain()
        self.samples = 0
        while True:
            event = await self._event()
            self.samples = int(event.get("samples", self.samples))
            moved()
            if event["event"] == "epoch":
                return event

    async def done(self) -> None:
        """Wait until the process ends with exit code 0."""
        if await self.process.wait() != 0:
            raise self._failure()

    async def _event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            raise self._failure()
        event: dict[str, Any] = json.loads(line)
        return event

    def _failure(self) -> FeeddError:
        return FeeddError(f"trainer of rank {self.rank} ended with exit code {self.process.returncode}", stage="demo")


async def start_trainer(stack: AsyncExitStack, rank: int, arguments: list[str], env: dict[str, str]) -> Trainer:
    """Start one rank; its stderr is this process's stderr."""
    return Trainer(rank, await start(stack, "feedd_client.demo", arguments, env))
