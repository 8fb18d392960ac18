"""Serves the FIFOs of one channel, epoch after epoch.

Some FIFOs exist in advance. A reader that opens the FIFO of an epoch begins the epoch, and skips earlier ones that
nobody opened. An epoch ends when all bytes are written, or earlier if the reader closes the FIFO. Bytes of the next
epoch are fetched as soon as nothing of the current one is left to request.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import structlog

from feedd.catalog.channel_objects import list_channel
from feedd.flow.pools import CPU
from feedd.flow.sink_file import file_pieces
from feedd.pipes.epoch_reader import EpochReader, Wanted
from feedd.pipes.fifo import Fifo, ReaderClosed
from feedd.pipes.record_framing import ObjectFraming
from feedd.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.catalog.sources import Sources
    from feedd.channels.channel import Channel
    from feedd.pipes.epoch_reader import Piece, ReadLimits
    from feedd.pipes.fifo_events import FifoEvents

_FIFOS: Final = 3  # of an epoch and the next ones: readers look for the next FIFO when they have read one
_SERVED_MAX: Final = 2  # epochs at one time: a reader may open the next FIFO before it closes the last one
_log = structlog.get_logger(__name__)


class EpochEnding(enum.Enum):
    """How an epoch ended."""

    WHOLE = "whole"
    EARLY = "closed early by the reader"
    LEFT = "given up: the reader opened later epochs"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class PipeTotals:
    """What a channel's readers got.

    Attributes:
        epochs: number of epochs by their end.
        object_count: objects and values written to the end.
        size_bytes: bytes written.
    """

    epochs: dict[EpochEnding, int]
    object_count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PipeSetup:
    """What the channels of a job share.

    Attributes:
        folder: folder of the FIFOs.
        sources: finds and fetches objects.
        events: tells when readers come.
        group: runs everything.
        limits: bounds of what is fetched in advance for one epoch.
        heads_in_flight: concurrent requests for the objects of a manifest.
    """

    folder: Path
    sources: Sources
    events: FifoEvents
    group: asyncio.TaskGroup
    limits: ReadLimits
    heads_in_flight: int


class ChannelPipe:
    """The FIFOs of one channel; a context manager, which creates the first ones.

    Args:
        channel: the channel.
        node_count: number of nodes that share it.
        node_rank: rank of this node among them.
        setup: what all channels share.

    Attributes:
        totals: what the readers got until now.
    """

    def __init__(self, channel: Channel, node_count: int, node_rank: int, setup: PipeSetup) -> None:
        self._channel = channel
        self._node = node_count, node_rank
        self._setup = setup
        self._fifos: dict[int, Fifo] = {}  # that nobody has opened yet, by epoch
        self._served: dict[int, asyncio.Task[None]] = {}
        self._reader: tuple[int, EpochReader] | None = None  # of an epoch that nobody has opened yet
        self._opened = asyncio.Event()
        self._stopping = False
        self.totals = PipeTotals(dict.fromkeys(EpochEnding, 0))

    async def __aenter__(self) -> Self:
        """Create the first FIFOs, so that a reader finds them while the channel is listed.

        Raises:
            BadRequest, CacheUnavailable, ResourceExhausted: a FIFO cannot be created.
        """
        try:
            self._make_from(0)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    async def run(self) -> None:
        """List the channel, and serve its epochs until cancelled.

        Raises:
            FeeddError: the channel cannot be listed, or an object cannot be read. Its reader sees the end of file.
        """
        await self._list()
        while True:
            await self._opened.wait()
            self._opened.clear()
            while (epoch := min((e for e, fifo in self._fifos.items() if fifo.is_opened), default=None)) is not None:
                await self._begin(epoch)

    async def _list(self) -> None:
        """Find what the channel holds, and begin to fetch before any reader comes."""
        objects = await list_channel(self._setup.sources, self._channel, self._setup.heads_in_flight)
        self._objects, self._share = objects, objects.on_node(*self._node)
        first = await CPU.run(self._share.indices, 0)
        channel = self._channel
        size_bytes = sum(objects.refs[index].size_bytes for index in first.tolist()) if objects.lines is None else 0
        _log.info(
            "channel",
            channel=channel.name,
            url=channel.dataset_url,
            url_from=channel.url_origin,
            distribution=channel.distribution.value,
            node=f"{self._share.node_rank} of {self._share.node_count}",
            seed=channel.seed,
            **{"lines" if objects.lines is not None else "objects": f"{len(first)} of {objects.count}"},
            **({"bytes": format_size(size_bytes)} if size_bytes else {}),
            digest=objects.digest.hex()[:16],
            fifos=str(self._setup.folder / f"{channel.name}_0"),
        )
        self._reader = 0, self._read(0)

    def _make_from(self, epoch: int) -> None:
        for number in range(epoch, epoch + _FIFOS):
            if number not in self._fifos:
                path = self._setup.folder / f"{self._channel.name}_{number}"
                self._fifos[number] = Fifo(path, self._setup.events, self._opened.set).make()

    def _read(self, epoch: int) -> EpochReader:
        return EpochReader(self._wanted(epoch), self._setup.sources, self._setup.limits, self._setup.group)

    async def _begin(self, epoch: int) -> None:
        """Serve an epoch whose FIFO was opened."""
        fifo = self._fifos.pop(epoch)
        skipped = [number for number in self._fifos if number < epoch]
        for number in skipped:
            self._fifos.pop(number).close()
        if skipped:
            _log.info("epochs skipped", channel=self._channel.name, epochs=skipped, opened=epoch)
        try:
            self._make_from(epoch + 1)
            while len(self._served) >= _SERVED_MAX:
                oldest = self._served[min(self._served)]
                oldest.cancel()
                await asyncio.wait([oldest])
            reader = await self._reader_of(epoch)
        except BaseException:
            fifo.close()
            raise
        task = self._setup.group.create_task(self._serve(epoch, fifo, reader))
        self._served[epoch] = task
        task.add_done_callback(functools.partial(self._ended, epoch, fifo))

    async def _reader_of(self, epoch: int) -> EpochReader:
        known, self._reader = self._reader, None
        if known is not None and known[0] == epoch:
            return known[1]
        if known is not None:
            await known[1].close()
        return self._read(epoch)

    def _ended(self, epoch: int, fifo: Fifo, _: asyncio.Task[None]) -> None:
        fifo.close()
        self._served.pop(epoch, None)

    async def _serve(self, epoch: int, fifo: Fifo, reader: EpochReader) -> None:
        begin_s, ending, before_count = time.monotonic(), EpochEnding.FAILED, self.totals.object_count
        _log.info("epoch begins", channel=self._channel.name, epoch=epoch)
        follow = self._setup.group.create_task(self._follow(epoch, reader))
        try:
            await self._write(fifo, reader)
            ending = EpochEnding.WHOLE
        except ReaderClosed:
            ending = EpochEnding.EARLY
        except asyncio.CancelledError:
            ending = EpochEnding.STOPPED if self._stopping else EpochEnding.LEFT
            raise
        finally:
            follow.cancel()
            size_bytes = fifo.written_bytes if ending is EpochEnding.WHOLE else fifo.taken_bytes
            self.totals.epochs[ending] += 1
            self.totals.size_bytes += size_bytes
            elapsed_s = time.monotonic() - begin_s
            _log.info(
                "epoch ended",
                channel=self._channel.name,
                epoch=epoch,
                how=ending.value,
                objects=self.totals.object_count - before_count,
                bytes=format_size(size_bytes),
                took=format_duration(elapsed_s),
                rate=f"{format_size(size_bytes / max(elapsed_s, 1e-3))}/s",
            )
            await reader.close()

    async def _follow(self, epoch: int, reader: EpochReader) -> None:
        """Fetch for the next epoch once this one has nothing left to request."""
        await reader.fed.wait()
        if self._reader is None and epoch + 1 in self._fifos:
            self._reader = epoch + 1, self._read(epoch + 1)

    async def _write(self, fifo: Fifo, reader: EpochReader) -> None:
        framing: ObjectFraming | None = None
        while (piece := await reader.next()) is not None:
            try:
                if piece.is_first or framing is None:
                    framing = ObjectFraming(self._channel, piece.url, piece.object_bytes)
                    await fifo.write(memoryview(framing.begin()))
                await self._write_piece(fifo, framing, piece)
                if piece.is_last:
                    await fifo.write(memoryview(framing.end()))
                    self.totals.object_count += 1
            finally:
                piece.release()
        await fifo.finish()

    async def _write_piece(self, fifo: Fifo, framing: ObjectFraming, piece: Piece) -> None:
        if framing.is_plain:
            if piece.file is None:
                await fifo.write(piece.memory)
            else:
                await fifo.splice(piece.file.fd, piece.size_bytes)
            return
        for data in _data_of(piece):
            unpacked = framing.unpack(data)
            while (out := await CPU.run(next, unpacked, None)) is not None:
                await fifo.write(memoryview(out))

    def _wanted(self, epoch: int) -> Iterator[Wanted]:
        objects, lines = self._objects, self._objects.lines
        for index in self._share.indices(epoch).tolist():
            if lines is None:
                ref = objects.refs[index]
                yield Wanted(ref=ref)
                continue
            for part in lines.parts(index, self._channel.attributes):
                origin = f"{lines.url} line {lines.numbers[index]}"
                yield Wanted(part.url) if part.url else Wanted(origin, data=part.data)

    async def _stop(self) -> None:
        self._stopping = True
        for task in self._served.values():
            task.cancel()
        try:
            if self._served:
                await asyncio.wait([*self._served.values()])
            if self._reader is not None:
                await self._reader[1].close()
                self._reader = None
        finally:  # after a second cancellation the group ends the tasks; nobody else ends the FIFOs
            while self._fifos:
                self._fifos.popitem()[1].close()


def _data_of(piece: Piece) -> Iterator[memoryview]:
    if piece.file is None:
        yield piece.memory
        return
    for _, data in file_pieces(piece.file.fd, 0, piece.size_bytes):
        yield data
