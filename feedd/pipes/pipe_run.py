"""Opens what the FIFOs of a job need, and serves them until a signal comes."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from feedd.catalog.sources import Sources
from feedd.channels.announcement import announced
from feedd.channels.channel import InputMode
from feedd.channels.job import DATA_FOLDER
from feedd.clock import SystemClock
from feedd.daemon.cut_short import ended_by
from feedd.daemon.wiring import source_options
from feedd.errors import CacheUnavailable
from feedd.flow.loop_thread import LoopThread
from feedd.observe.recorder import NullRecorder
from feedd.pipes.channel_pipe import ChannelPipe, PipeSetup
from feedd.pipes.epoch_reader import ReadLimits
from feedd.pipes.fifo_events import FifoEvents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from feedd.channels.channel import Channel
    from feedd.channels.job import Cluster
    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.pipes.channel_pipe import PipeTotals

_EPOCHS: Final = 2  # of each channel, with bytes in advance
_PIECES_MAX: Final = 256  # memory files, and small bodies, in advance
_PIECES_MIN: Final = 4
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipePlan:
    """What to serve.

    Attributes:
        root: folder that has the role of ``/opt/ml``.
        channels: the channels.
        cluster: the nodes.
        buffer_bytes: bytes fetched and not yet taken by readers, of all channels together.
    """

    root: Path
    channels: Sequence[Channel]
    cluster: Cluster
    buffer_bytes: int


async def serve_pipes(plan: PipePlan, config: Config, stop: StopRequests) -> dict[str, PipeTotals]:
    """Serve the FIFOs until the first signal; return what each channel's readers got.

    Raises:
        FeeddError: a FIFO cannot be created, a channel cannot be listed, or an object cannot be read.
    """
    folder = plan.root / DATA_FOLDER
    totals: dict[str, PipeTotals] = {}
    options = source_options(config)
    async with AsyncExitStack() as stack:
        stack.enter_context(_owned(folder))
        nodes = [(channel, plan.cluster.node_of(channel)) for channel in plan.channels]
        served = [(channel, node) for channel, node in nodes if node is not None]
        for channel in {*plan.channels} - {channel for channel, _ in served}:
            _log.info("channel is for other instance groups", channel=channel.name, groups=channel.groups)
        stack.enter_context(announced(plan.root, [channel for channel, _ in served], InputMode.PIPE))
        events = stack.enter_context(FifoEvents())
        fetching = LoopThread("feedd-fetch")
        sources = await stack.enter_async_context(Sources(options, NullRecorder(), SystemClock(), fetching))
        async with ended_by(stop.drain), asyncio.TaskGroup() as group:
            setup = PipeSetup(folder, sources, events, group, _limits(plan), options.heads_in_flight)
            async with AsyncExitStack() as pipes:
                running = []
                for channel, node in served:
                    pipe = await pipes.enter_async_context(ChannelPipe(channel, *node, setup))
                    totals[channel.name] = pipe.totals
                    running.append(pipe)
                async with asyncio.TaskGroup() as runs:  # its tasks make FIFOs, so they end before the pipes close
                    for pipe in running:
                        runs.create_task(pipe.run())
                    await stop.drain.wait()  # there may be no channel for this node
    return totals


def _limits(plan: PipePlan) -> ReadLimits:
    """Divide the bounds evenly, because a reader may need any channel next, whatever the others hold."""
    reader_count = _EPOCHS * max(1, len(plan.channels))
    return ReadLimits(
        max(1, plan.buffer_bytes // reader_count), max(_PIECES_MIN, _EPOCHS * _PIECES_MAX // reader_count)
    )


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no two processes write to its FIFOs.

    Raises:
        CacheUnavailable: the folder cannot be used, or another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        message = f"expected a folder for FIFOs, got {(error.strerror or str(error)).lower()}"
        raise CacheUnavailable(message, object=str(folder), hint="choose another --root", stage="pipe") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = "expected a folder that no other feedd pipe serves, got one that is in use"
            hint = "stop the other process, or choose another --root"
            raise CacheUnavailable(message, object=str(folder), hint=hint, stage="pipe") from error
        yield
    finally:
        os.close(fd)
