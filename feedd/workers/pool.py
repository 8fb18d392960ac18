"""The decode workers of a node, as the rest of the daemon uses them.

The way of a call: ``DecodePool`` chooses the rows of a message. ``dispatch.Dispatch`` sends what ``schedule.Schedule``
assigns, and settles the answers. ``supervisor.WorkerSupervisor`` starts and replaces processes, ``autoscaler`` chooses
their number.

Rules, each with the test that holds it:

- Results do not depend on workers or chunks: ``test_results_do_not_depend_on_workers_or_chunks``.
- A killed worker changes no byte: ``test_a_killed_worker_changes_no_byte``. A worker that hangs is killed:
  ``test_a_stopped_worker_is_killed_at_its_deadline``.
- A row ends at most two workers: ``test_a_row_that_kills_costs_two_workers_once``.
- Nothing writes into a slot after its call has ended: ``test_a_cancelled_decode_leaves_the_slot_alone``,
  ``test_a_failed_call_ends_only_when_its_rows_are_at_rest``.
- Workers end with their daemon: ``test_workers_die_with_their_daemon``.
- Workers get no secrets: ``test_workers_have_only_the_variables_on_a_list``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self, TypeVar

import numpy as np

from feedd import metrics
from feedd.errors import BadSample
from feedd.recipe.params import params_of
from feedd.recipe.recipe import check_fields, needs_resolve, spec_of
from feedd.recipe.slow_imports import SLOW_MODULES, slow_module
from feedd.shard_index import IndexLimits
from feedd.tables.task import ConvertedShard
from feedd.workers.autoscaler import Autoscaler
from feedd.workers.calls import (
    DecodeCall,
    GatherCall,
    MeasureCall,
    OneCall,
    Poison,
    ProduceCall,
    index_call,
    make_call,
    pin_call,
)
from feedd.workers.dispatch import Dispatch
from feedd.workers.fixed_width import chunk_rows, request_rows
from feedd.workers.messages import Attach, Detach, Packet, Prepare, copies, encode
from feedd.workers.schedule import ChunkSizer
from feedd.workers.supervisor import WorkerSupervisor

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from numpy.typing import NDArray

    from feedd.protocols import Recorder
    from feedd.shard_index import ShardIndex
    from feedd.tables.task import MakeTask, MissingRanges
    from feedd.values import FieldRecipe, ShardFile
    from feedd.workers.work import DecodeOptions, DecodeResult, DecodeTask, FieldWork, GatherTask, Piece


_MEASURE_ROWS: Final = 256
_AHEAD_CONVERTERS: Final = ("parquet",)
"""Their library is imported by idle workers, because most tables need it.

It takes 60 ms and 8 MiB, and 24 MiB of mapped files that workers share. Without it the first batch of Parquet takes
1.7 times as long as with ``pyarrow.dataset``, instead of 1.3 to 1.6 times.
"""
_AHEAD_WORKERS_MAX: Final = 8  # few objects are converted at a time

T = TypeVar("T")


class DecodePool:
    """Decode workers behind plain coroutines; an async context manager.

    Entering starts the workers and waits for their hellos; leaving ends and reaps all of them. In between, demand
    decides their number, and a worker that has grown too large is replaced (see ``autoscaler``).
    A worker that dies or runs past ``task_deadline_s`` is replaced, and its chunks are replayed (see
    ``schedule.Schedule``). Results do not depend on the number of workers, on chunk sizes or on workers' deaths.

    Cancelling ``decode`` returns only when no worker can write into the task's slot any more. Waiting chunks are
    dropped, running ones get ``cancel_grace_s`` to finish, then their workers are killed. The slot may be reused as
    soon as the CancelledError arrives. The same holds if ``decode`` raises.
    """

    def __init__(self, options: DecodeOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._arenas: dict[int, tuple[int, int]] = {}  # arena id -> (our own descriptor, size in bytes)
        self._chunk_sizer = ChunkSizer(options.chunk_rows)
        self._poison = Poison()
        self._converters: set[str] = set()  # those whose libraries workers were told to import
        self._dispatch = Dispatch(options, recorder)
        self._supervisor = WorkerSupervisor(options, self._dispatch, recorder, self._first_packets)
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
        """Ids of the processes that take work now, by worker number."""
        return self._dispatch.pids

    def prepare(self, recipes: Iterable[FieldRecipe] = (), converters: Iterable[str] = ()) -> None:
        """Have workers import slow modules for these fields and converters, while no samples or objects wait."""
        modules = {slow_module(params_of(one)) for one in recipes} - {""}
        new = set(converters) - self._converters
        self._converters |= new
        if modules or new:
            self._dispatch.broadcast(Packet(encode(Prepare(tuple(sorted(modules)), tuple(sorted(new))))))

    def warm(self) -> None:
        """Have workers import all slow modules, because the fields of the first sessions are not known yet."""
        self._dispatch.broadcast(Packet(encode(Prepare(tuple(sorted(SLOW_MODULES)), _AHEAD_CONVERTERS))))

    async def index(self, file: ShardFile, format_name: str, object_bytes: int = 0) -> ShardIndex:
        """Return the index of the samples of ``file``.

        Args:
            file: the shard.
            format_name: its format.
            object_bytes: size of its object in the store. The index of a large object may take more memory.

        Raises:
            BadShard: broken framing, or samples whose index takes too much memory.
            CacheUnavailable: the file is missing or too short.
            Unsupported: the format is unknown.
            ResourceExhausted: no more files may be open.
        """
        is_converted = file.ref.conversion is not None
        limits = IndexLimits.of(self._options.index_bytes, object_bytes, is_converted=is_converted)
        return await self._one(index_call(file, format_name, object_bytes, limits))

    async def make(self, task: MakeTask) -> ConvertedShard | MissingRanges:
        """Convert an object into a shard, or return the missing ranges of the object that are needed first.

        The converting worker gets no other work. When this method returns or raises, nothing writes to ``out_fd`` any
        more.

        Raises:
            BadShard: broken bytes, a shard above the limit, an index that takes too much memory, or an object that
                killed two workers.
            Unsupported: the conversion is unknown, or a library is missing.
            ResourceExhausted: not enough memory for the shard, or no more files may be open.
        """
        limits = IndexLimits.of(self._options.index_bytes, task.size_bytes, is_converted=True)
        outcome = await self._one(make_call(task, limits))
        told = outcome if isinstance(outcome, ConvertedShard) else outcome.plan
        if told is not None and told.index is not None:
            limits.check(told.index.nbytes, told.index.sample_count, task.url)
        return outcome

    async def _one(self, call: OneCall[T]) -> T:
        await self._dispatch.do(call, 1)
        return call.result

    async def resolve(
        self, file: ShardFile, index: ShardIndex, recipes: Sequence[FieldRecipe], tries: int = 1
    ) -> tuple[FieldRecipe, ...]:
        """Return ``recipes`` with all facts that only data can tell: ``npy``'s dtype and dimensions.

        Args:
            file: the shard.
            index: index of the shard.
            recipes: recipes of its fields.
            tries: maximum number of samples to try; the first readable sample decides.

        Raises:
            BadRecipe: the shard lacks a field; the message lists its fields.
            BadSample: no tried sample of a field can be read; the message names the first.
            CacheUnavailable: the file is missing or too short.
        """
        check_fields(recipes, index.fields)
        return tuple([await self._pin(file, index, r, tries) if needs_resolve(r) else r for r in recipes])

    async def _pin(self, file: ShardFile, index: ShardIndex, recipe: FieldRecipe, tries: int) -> FieldRecipe:
        column = next(index.fields.index(source) for source in recipe.sources if source in index.fields)
        first = BadSample(f"field {recipe.name!r}: expected a sample with this field, got none", object=file.ref.url)
        for number, sample in enumerate(np.flatnonzero(index.sizes[column] >= 0)[:tries].tolist()):
            span = int(index.starts[column, sample]), int(index.sizes[column, sample])
            try:
                return await self._one(pin_call(file, recipe, *span))
            except BadSample as error:
                first = first if number else _unpinned(file, index.key(sample), sample, recipe, error)
        raise first

    async def measure(self, files: Sequence[ShardFile], work: FieldWork) -> NDArray[np.int64]:
        """Return the decoded shapes, int64[rows, ndim], of a field for which ``recipe.recipe.needs_measure``.

        Rows that cannot be measured are -1 in every column; decode them to get the reason.

        Raises:
            CacheUnavailable: a file is missing or too short.
        """
        call = MeasureCall(files, work, max(1, spec_of(work.recipe).ndim), self._poison)
        await self._dispatch.do(call, _MEASURE_ROWS)
        return call.shapes

    async def produce(self, files: Sequence[ShardFile], work: FieldWork) -> tuple[NDArray[np.int64], list[Piece]]:
        """Return lengths, int64[rows, 1], and values in order of rows, of a field for which ``recipe.recipe.keeps``.

        Rows that cannot be measured are -1. Some rows may lack their values: decode those.

        Raises:
            CacheUnavailable: a file is missing or too short.
        """
        call = ProduceCall(files, work, spec_of(work.recipe).dtype, self._poison)
        await self._dispatch.do(call, self._dispatch.spread(call.rows, self._options.chunk_rows))
        return call.shapes, sorted(call.pieces, key=lambda piece: piece.rows.start)

    async def numbers(
        self, files: Sequence[ShardFile], work: FieldWork
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return float64[rows], the numbers of a field with one per sample, and bool[rows], which could be read.

        Raises:
            CacheUnavailable: a file is missing or too short.
        """
        call = MeasureCall(files, work, 2, self._poison, values=True)
        await self._dispatch.do(call, _MEASURE_ROWS)
        return np.ascontiguousarray(call.shapes[:, 1]).view(np.float64), call.shapes[:, 0] > 0

    async def decode(self, task: DecodeTask) -> DecodeResult:
        """Decode all fields of all rows of ``task`` into its slot.

        Raises:
            CacheUnavailable: a file is missing or too short.
            BadRequest: a single row does not fit a message (hundreds of fields).
            Draining: the pool is closing.
            Internal: the arena is not attached, or a row lies outside it.
        """
        call = DecodeCall(task, self._poison)
        rows = chunk_rows((work.recipe for work in task.fields), self._options.chunk_rows, call.rows)
        if rows == self._options.chunk_rows:  # plain copies are not spread further
            rows = self._chunk_sizer.of(task.arena_id, call.rows, self._dispatch.worker_count)
            row_bytes = sum(int(work.size.sum()) for work in task.fields) // max(call.rows, 1)
            rows = self._dispatch.spread(call.rows, min(rows, request_rows(len(task.fields))), row_bytes)
        await self._dispatch.do(call, rows)
        result = call.result
        if call.rows:
            self._chunk_sizer.took(task.arena_id, call.rows, result.busy_s)
        self._recorder.count(metrics.DECODE_SAMPLES, call.rows - len(result.bad))
        if result.bad:
            self._recorder.count(metrics.DECODE_BAD_SAMPLES, len(result.bad))
        return result

    async def gather(self, task: GatherTask) -> NDArray[np.int64]:
        """Copy batches of numbers into their slots; return the rows that were not copied, ascending.

        Decode those rows to get the reason.

        Raises:
            As ``decode``.
        """
        if self._poison.concerns(task.files):
            return np.arange(task.batch_ends[-1])
        arena_fd, _ = self._arenas.get(task.arena_id, (-1, 0))
        call = GatherCall(task, arena_fd)
        await self._dispatch.do(call, self._dispatch.spread(call.rows, call.request_units))
        undone = call.undone
        self._recorder.count(metrics.DECODE_SAMPLES, int(task.batch_ends[-1]) - len(undone))
        return undone

    def attach(self, arena_id: int, fd: int, size_bytes: int, owner: Hashable = None) -> None:
        """Make an arena known to all workers, including later ones.

        Args:
            arena_id: its number.
            fd: its descriptor, which stays the caller's.
            size_bytes: its size.
            owner: who is charged for decoding into it; workers' time is shared evenly between owners.

        Raises:
            ResourceExhausted: no more files may be open.
        """
        self.detach(arena_id)
        (copy,) = copies((fd,))
        self._arenas[arena_id] = (copy, size_bytes)
        self._dispatch.owners[arena_id] = owner
        self._dispatch.broadcast(self._arena_packet(arena_id))

    def detach(self, arena_id: int) -> None:
        """Have all workers unmap an arena; no decode into it may be running. Unknown ids are ignored."""
        self._chunk_sizer.forget(arena_id)
        self._dispatch.owners.pop(arena_id, None)
        held = self._arenas.pop(arena_id, None)
        if held is not None:
            os.close(held[0])
            self._dispatch.broadcast(Packet(encode(Detach(arena_id))))

    def _first_packets(self) -> list[Packet]:
        """Return the messages for a worker that joins."""
        packets = [self._arena_packet(number) for number in self._arenas]
        if self._dispatch.worker_count < _AHEAD_WORKERS_MAX:
            packets.append(Packet(encode(Prepare(converters=_AHEAD_CONVERTERS, when_idle=True))))
        return packets

    def _arena_packet(self, arena_id: int) -> Packet:
        fd, size_bytes = self._arenas[arena_id]
        return Packet(encode(Attach(arena_id, size_bytes)), (fd,))


def _unpinned(file: ShardFile, key: str, ordinal: int, recipe: FieldRecipe, error: BadSample) -> BadSample:
    """Return the error of the first sample that should have determined dtype and dimensions."""
    return BadSample(
        f"sample {key!r} (number {ordinal}), field {recipe.name!r}: {error.message}",
        object=file.ref.url,
        hint="a first sample decides dtype and dimensions: repair it, or give them in fields, as npy:float32:3,4",
        stage="decode",
    )
