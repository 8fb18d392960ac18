"""Serves channels of local files in the process of a test, with readers in threads."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from feedd.channels.channel import Channel
from feedd.channels.job import Cluster
from feedd.config import load
from feedd.daemon.failures import single
from feedd.daemon.signals import StopRequests
from feedd.pipes.pipe_run import PipePlan, serve_pipes
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from feedd.pipes.channel_pipe import PipeTotals


class Serving:
    """Running pipes.

    Attributes:
        root: the job's folder.
        task: the server; ends with the totals.
        stop: asks it to end.
    """

    def __init__(self, root: Path, task: asyncio.Task[dict[str, PipeTotals]], stop: StopRequests) -> None:
        self.root, self.task, self.stop = root, task, stop

    def fifo(self, epoch: int, channel: str = "train") -> Path:
        """Return the path of an epoch's FIFO."""
        return self.root / "input" / "data" / f"{channel}_{epoch}"

    async def end(self) -> PipeTotals:
        """Stop, and return the totals of the only channel."""
        self.stop.ask("test")
        (found,) = (await self.task).values()
        return found


def begun(root: Path, *channels: Channel, nodes: Cluster | None = None, buffer_bytes: int = 8 * MIB) -> Serving:
    """Begin to serve channels below ``root``; whoever calls this ends it."""
    stop = StopRequests()
    plan = PipePlan(root, channels, nodes or Cluster(), buffer_bytes)
    return Serving(root, asyncio.create_task(serve_pipes(plan, load({}, {}).config, stop)), stop)


@asynccontextmanager
async def serving(
    root: Path, *channels: Channel, nodes: Cluster | None = None, buffer_bytes: int = 8 * MIB
) -> AsyncIterator[Serving]:
    """Serve channels below ``root``; at the end no FIFO is left.

    Raises:
        FeeddError: the error that ended the server.
    """
    pipes = begun(root, *channels, nodes=nodes, buffer_bytes=buffer_bytes)
    try:
        first = pipes.fifo(0, channels[0].name)
        while not first.exists() and not pipes.task.done():  # noqa: ASYNC110 - as readers do
            await asyncio.sleep(0.005)
        yield pipes
    finally:
        pipes.stop.ask("test")
        await asyncio.wait([pipes.task])
    error = pipes.task.exception()
    if error is not None:
        raise single(error)
    assert not [*first.parent.iterdir()]


def data_in(folder: Path, sizes: Sequence[int]) -> list[bytes]:
    """Write a file of each size, and return their contents in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    for number, content in enumerate(found):
        (folder / f"{number:03d}.bin").write_bytes(content)
    return found


def channel_at(url: Path | str, name: str = "train", **settings: object) -> Channel:
    """Return a channel."""
    return Channel(name, **settings).at(str(url), "test")  # type: ignore[arg-type]  # any of its fields
