"""The decode workers of a simulated node."""

from __future__ import annotations

import asyncio
from typing import Final

from feedd.workers.schedule import DEPTH, Call, ChunkSizer, Schedule, spread
from feedd.workers.work import DecodeOptions

_INDEX_STREAM: Final = 0


class _Call(Call):
    """A call that ends when the workers have spent ``row_s`` on each of its rows."""

    __slots__ = ("done", "row_s")

    def __init__(self, stream: int, row_s: float) -> None:
        super().__init__(stream)
        self.row_s = row_s
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class SimulatedWorkers:
    """Workers that do chunks of rows, as the daemon sizes and assigns them; each chunk takes a model's time.

    Args:
        worker_count: number of workers.
        first_s: how much longer the first rows take that a worker decodes.

    Attributes:
        busy_s: CPU seconds of all work that was begun.
    """

    def __init__(self, worker_count: int, first_s: float = 0.0) -> None:
        self._worker_count = worker_count
        self._schedule = Schedule(DEPTH)
        for worker in range(worker_count):
            self._schedule.join(worker)
        self._first_s = dict.fromkeys(range(worker_count), first_s)  # by worker; 0.0 after its first rows
        self._chunk_sizer = ChunkSizer(DecodeOptions().chunk_rows)
        self.busy_s = 0.0

    def __repr__(self) -> str:
        return f"SimulatedWorkers({self._worker_count})"

    async def index(self, cpu_s: float) -> None:
        """Return when a worker has read an index."""
        await self._do(_Call(_INDEX_STREAM, cpu_s), 1, 1)

    async def decode(self, arena: int, rows: int, row_s: float) -> None:
        """Return when the workers have decoded a batch.

        Args:
            arena: number of the rank's arena, above 0.
            rows: rows of the batch.
            row_s: CPU seconds for a row.
        """
        chunk_rows = self._chunk_sizer.of(arena, rows, self._worker_count)
        await self._do(_Call(arena, row_s), rows, spread(self._schedule, self._worker_count, rows, chunk_rows))
        self._chunk_sizer.took(arena, rows, rows * row_s)

    async def _do(self, call: _Call, rows: int, chunk_rows: int) -> None:
        if not call.row_s:
            return
        self._schedule.submit(call, rows, chunk_rows)
        self._assign()
        await call.done

    def _assign(self) -> None:
        while (assigned := self._schedule.assign()) is not None:
            worker, chunk = assigned
            if self._schedule.running(worker) is chunk:
                self._begin(worker)

    def _begin(self, worker: int) -> None:
        """Begin the chunk that a worker does next, if there is one."""
        chunk = self._schedule.running(worker)
        if chunk is None:
            return
        call = chunk.call
        assert isinstance(call, _Call)
        took_s = len(chunk.rows) * call.row_s
        if call.stream != _INDEX_STREAM:
            took_s += self._first_s[worker]
            self._first_s[worker] = 0.0
        self.busy_s += took_s
        asyncio.get_running_loop().call_later(took_s, self._end, worker)

    def _end(self, worker: int) -> None:
        call = self._schedule.finish(worker).call
        assert isinstance(call, _Call)
        self._begin(worker)
        self._assign()
        if call.over:
            call.done.set_result(None)
