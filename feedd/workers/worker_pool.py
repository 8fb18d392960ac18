"""The decode workers of a node, as the rest of the daemon sees them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from feedd import metrics
from feedd.errors import BadSample
from feedd.recipe.params import params_of
from feedd.recipe.recipe import check_fields, needs_resolve, spec_of
from feedd.recipe.slow_imports import slow_module
from feedd.workers.autoscaler import Autoscaler
from feedd.workers.calls import DecodeCall, IndexCall, MeasureCall, PinCall, ProduceCall
from feedd.workers.chunk_sizer import ChunkSizer
from feedd.workers.convert_call import MakeCall
from feedd.workers.descriptors import copies
from feedd.workers.dispatch import Dispatch, Packet
from feedd.workers.fixed_width import chunk_rows, request_rows
from feedd.workers.messages import Attach, Detach, Prepare, encode
from feedd.workers.poison import Poison
from feedd.workers.supervisor import WorkerSupervisor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.protocols import Recorder
    from feedd.values import ByteRange, FieldRecipe, ShardFile, ShardIndex
    from feedd.workers.work import DecodeOptions, DecodeResult, DecodeTask, FieldWork, MadeShard, MakeTask, Piece

_MEASURE_ROWS: Final = 256


class DecodePool:
    """Decode workers behind plain coroutines; an async context manager.

    Entering starts the workers and waits for their hellos; leaving ends and reaps all of them. Between, there are as
    many as demand asks for (see ``autotune``), and one that has grown too large is replaced (see ``autoscaler``). A
    worker that dies or runs past ``task_deadline_s`` is replaced and what it held is replayed (see
    ``schedule.Schedule``). Results do not depend on the number of workers, on the size of chunks or on who dies when.

    Cancelling ``decode`` returns only when no worker can write into the task's slot any more: waiting chunks are
    dropped, running ones get ``cancel_grace_s`` to finish, then their workers are killed. The slot may be reused the
    moment the CancelledError arrives. The same holds when ``decode`` raises.
    """

    def __init__(self, options: DecodeOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._arenas: dict[int, tuple[int, int]] = {}  # id -> our own descriptor, size
        self._portions = ChunkSizer(options.chunk_rows)
        self._poison = Poison()
        self._dispatch = Dispatch(options, recorder)
        arenas = self._arenas
        self._supervisor = WorkerSupervisor(
            options, self._dispatch, recorder, lambda: [self._arena_packet(number) for number in arenas]
        )
        self._autoscaler = Autoscaler(options, self._dispatch, self._supervisor, recorder)

    async def __aenter__(self) -> Self:
        await self._supervisor.start()
        self._autoscaler.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._autoscaler.stop()
        try:
            await self._supervisor.stop()
        finally:
            for arena_id in tuple(self._arenas):
                self.detach(arena_id)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Processes that take work now, by worker number."""
        return self._dispatch.pids

    def prepare(self, recipes: Iterable[FieldRecipe]) -> None:
        """Have workers load what such fields need, where that takes long, while nothing is there to decode yet."""
        modules = {slow_module(params_of(one)) for one in recipes} - {""}
        if modules:
            self._dispatch.tell(Packet(encode(Prepare(tuple(sorted(modules))))))

    async def index(self, file: ShardFile, format_name: str) -> ShardIndex:
        """Return where each sample of ``file`` lies.

        Raises:
            BadShard: broken framing.
            CacheUnavailable: the file is gone or too short.
            Unsupported: no such format.
            ResourceExhausted: no more files may be open.
        """
        call = IndexCall(file, format_name)
        await self._dispatch.do(call, 1)
        assert call.index is not None
        return call.index

    async def make(self, task: MakeTask) -> MadeShard | tuple[ByteRange, ...]:
        """Make a shard of an object, or return which of its bytes are needed first.

        A worker that makes one is given nothing else. When this returns, or raises, nobody writes to ``out_fd`` any
        more.

        Raises:
            BadShard: broken bytes, more than the limit, or a worker died of them twice.
            Unsupported: no such form, or a library is missing.
            ResourceExhausted: no room for what is made, or no more files may be open.
        """
        call = MakeCall(task)
        await self._dispatch.do(call, 1)
        return call.outcome

    async def resolve(
        self, file: ShardFile, index: ShardIndex, recipes: Sequence[FieldRecipe], tries: int = 1
    ) -> tuple[FieldRecipe, ...]:
        """Return ``recipes`` with everything pinned that only data can tell: ``npy``'s dtype and dimensions.

        Args:
            file: the shard.
            index: of it.
            recipes: of its fields.
            tries: samples that may be tried, the first that can be read tells.

        Raises:
            BadRecipe: a field this shard does not have; the message lists those it has.
            BadSample: none of the first samples of such a field is what its codec expects; names the first one.
            CacheUnavailable: the file is gone or too short.
        """
        check_fields(recipes, index.fields)
        return tuple([await self._pin(file, index, r, tries) if needs_resolve(r) else r for r in recipes])

    async def _pin(self, file: ShardFile, index: ShardIndex, recipe: FieldRecipe, tries: int) -> FieldRecipe:
        column = next(index.fields.index(source) for source in recipe.sources if source in index.fields)
        first = BadSample(f"field {recipe.name!r}: expected a sample that has it, got none", object=file.ref.url)
        for number, sample in enumerate(np.flatnonzero(index.sizes[column] >= 0)[:tries].tolist()):
            call = PinCall(file, recipe, int(index.starts[column, sample]), int(index.sizes[column, sample]))
            try:
                await self._dispatch.do(call, 1)
            except BadSample as error:
                first = first if number else _unpinned(file, index.key(sample), sample, recipe, error)
                continue
            return call.recipe
        raise first

    async def measure(self, files: Sequence[ShardFile], work: FieldWork) -> NDArray[np.int64]:
        """Return the decoded shapes, int64[rows, ndim], of a field for which ``recipe.recipe.needs_measure``.

        A row that cannot be measured is -1 in every column; decode it all the same to learn why.

        Raises:
            CacheUnavailable: a file is gone or too short.
        """
        call = MeasureCall(files, work, max(1, spec_of(work.recipe).ndim), self._poison)
        await self._dispatch.do(call, _MEASURE_ROWS)
        return call.shapes

    async def produce(self, files: Sequence[ShardFile], work: FieldWork) -> tuple[NDArray[np.int64], list[Piece]]:
        """Return lengths, int64[rows, 1], and values in order of rows, of a field for which ``recipe.recipe.keeps``.

        A row that cannot be measured is -1, and one may lack its values: decode those.

        Raises:
            CacheUnavailable: a file is gone or too short.
        """
        call = ProduceCall(files, work, spec_of(work.recipe).dtype, self._poison)
        await self._dispatch.do(call, self._dispatch.spread(call.rows, self._options.chunk_rows))
        return call.shapes, sorted(call.pieces, key=lambda piece: piece.rows.start)

    def produced(self, rows: int) -> None:
        """Count samples of which nothing was left to decode."""
        self._recorder.count(metrics.DECODE_SAMPLES, rows)

    async def numbers(
        self, files: Sequence[ShardFile], work: FieldWork
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the numbers, float64[rows], of a field that holds one per sample, and which of them could be read.

        Raises:
            CacheUnavailable: a file is gone or too short.
        """
        call = MeasureCall(files, work, 2, self._poison, values=True)
        await self._dispatch.do(call, _MEASURE_ROWS)
        return np.ascontiguousarray(call.shapes[:, 1]).view(np.float64), call.shapes[:, 0] > 0

    async def decode(self, task: DecodeTask) -> DecodeResult:
        """Decode all fields of all rows of ``task`` into its slot.

        Raises:
            CacheUnavailable: a file is gone or too short.
            BadRequest: one row alone does not fit a message (hundreds of fields).
            Draining: the pool is closing.
            Internal: the arena is not attached, or a row lies outside it.
        """
        call = DecodeCall(task, self._poison)
        rows = chunk_rows((work.recipe for work in task.fields), self._options.chunk_rows, call.rows)
        if rows == self._options.chunk_rows:  # not worth it for plain copies
            rows = self._portions.of(task.arena_id, call.rows, self._dispatch.worker_count)
            rows = self._dispatch.spread(call.rows, min(rows, request_rows(len(task.fields))))
        await self._dispatch.do(call, rows)
        result = call.result
        if call.rows:
            self._portions.took(task.arena_id, call.rows, result.busy_s)
        self._recorder.count(metrics.DECODE_SAMPLES, call.rows - len(result.bad))
        if result.bad:
            self._recorder.count(metrics.DECODE_BAD_SAMPLES, len(result.bad))
        return result

    def attach(self, arena_id: int, fd: int, size_bytes: int) -> None:
        """Make an arena known to all workers, those started later too. ``fd`` stays the caller's.

        Raises:
            ResourceExhausted: no more files may be open.
        """
        self.detach(arena_id)
        (copy,) = copies((fd,))
        self._arenas[arena_id] = (copy, size_bytes)
        self._dispatch.tell(self._arena_packet(arena_id))

    def detach(self, arena_id: int) -> None:
        """Have all workers unmap an arena; no decode into it may be under way. Unknown ids are ignored."""
        self._portions.forget(arena_id)
        held = self._arenas.pop(arena_id, None)
        if held is not None:
            os.close(held[0])
            self._dispatch.tell(Packet(encode(Detach(arena_id))))

    def _arena_packet(self, arena_id: int) -> Packet:
        fd, size_bytes = self._arenas[arena_id]
        return Packet(encode(Attach(arena_id, size_bytes)), (fd,))


def _unpinned(file: ShardFile, key: str, ordinal: int, recipe: FieldRecipe, error: BadSample) -> BadSample:
    """Return what is said of the first sample that should have told what a field holds."""
    return BadSample(
        f"sample {key!r} (number {ordinal}), field {recipe.name!r}: {error.message}",
        object=file.ref.url,
        hint="a first sample tells dtype and dimensions: repair it, or say them in fields, as npy:float32:3,4",
        stage="decode",
    )
