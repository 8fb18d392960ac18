"""Requests to the pool, and its results."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feedd.values import FieldRecipe, ShardFile


CHUNK_ROWS_MAX: Final = 64
"""A worker's answer names each bad row with its reason, and must fit one packet."""


RECYCLE_GROWTH_BYTES: Final = 512 << 20
"""Eight times the memory that a codec keeps for the largest image. A leak reaches this limit, or memory fragmented by
very large samples. A new process costs 0.3 s of one core then, and supply is not interrupted."""


INDEX_BYTES: Final = 40 << 20
"""Memory of the index of one shard, in the daemon, that any shard may take."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options of the pool.

    Attributes:
        workers: number of processes, >= 1; if ``workers_max`` is larger, the minimum.
        workers_max: maximum number of processes; demand decides in between. 0: always ``workers``.
        cpus: cores that the workers may run on; empty: those of this process.
        recycle_growth_bytes: a worker is replaced when its own memory has grown by this much; 0: never.
        memory_bytes: private memory that a worker may take for one call, see ``tables.memory``; 0: no limit.
        index_bytes: memory of the index of one shard, see ``shard_index.IndexLimits``.
        task_deadline_s: a worker that spends longer on one chunk is killed, and the chunk replayed.
        nice: niceness of the workers; 0 leaves it.
        chunk_rows: rows per message to a worker; small enough to balance, large enough to spread a message's cost. Up
            to eight times as many if rows are quick (see ``ChunkSizer``).
        start_deadline_s: maximum time from starting a worker to its hello.
        cancel_grace_s: how long a cancelled decode waits for its running chunks before it kills their workers.
        close_grace_s: how long idle workers may take to leave at close.
        readable: folders that workers may read besides their Python installation, in a sandbox; None: no sandbox.
        environment: names of variables that workers inherit, besides those that every worker needs.
        command: the worker's command line; descriptor and parent's pid are appended.
    """

    workers: int = 1
    workers_max: int = 0
    cpus: tuple[int, ...] = ()
    recycle_growth_bytes: int = RECYCLE_GROWTH_BYTES
    memory_bytes: int = 2 << 30
    index_bytes: int = INDEX_BYTES
    task_deadline_s: float = 60.0
    nice: int = 0
    chunk_rows: int = 32
    start_deadline_s: float = 180.0
    cancel_grace_s: float = 5.0
    close_grace_s: float = 5.0
    readable: tuple[str, ...] | None = None
    environment: tuple[str, ...] = ()
    command: tuple[str, ...] = (sys.executable, "-P", "-X", "faulthandler", "-m", "feedd.workers.worker")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"expected 1 or more decode workers, got {self.workers}")
        if not 1 <= self.chunk_rows <= CHUNK_ROWS_MAX:
            raise ValueError(f"expected 1 to {CHUNK_ROWS_MAX} rows per chunk, got {self.chunk_rows}")


@dataclass(frozen=True, slots=True)
class FieldWork:
    """One field of the rows of a task; every array has one entry per row.

    Attributes:
        recipe: resolved recipe.
        file_no: int32[rows], which of the task's files.
        start: int64[rows], first byte in the object.
        size: int64[rows], bytes; -1 if the sample lacks the field: the row is then reported as bad.
        out_at: int64[rows], target offset in bytes from the slot's start. Not used by ``measure``.
        shape: int64[rows, ndim] of the decoded value if the field is not DENSE, else None. A row of -1, which
            ``measure`` returns for rows that it cannot measure, makes decode report the row with the reason.
        dims: shape of each row, if the recipe has ``pad``.
    """

    recipe: FieldRecipe
    file_no: NDArray[np.int32]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    out_at: NDArray[np.int64]
    shape: NDArray[np.int64] | None = None
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Values of some rows that were decoded in order to measure them.

    Attributes:
        rows: the rows.
        values: their values back to back; rows that cannot be measured have none.
    """

    rows: range
    values: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """One batch: all fields of all rows, to decode into one slot of an attached arena.

    Attributes:
        slot_at: the slot's first byte in the arena.
        seeds: uint64[rows], which alone determine augmentation.
    """

    files: tuple[ShardFile, ...]
    arena_id: int
    slot_at: int
    fields: tuple[FieldWork, ...]
    seeds: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Column:
    """A field of numbers, equally many in each sample, whose values lie at regular distances in each file.

    Attributes:
        recipe: resolved recipe of a plain copy (see ``fixed_width``).
        at: int64[files], first byte of the first sample's value in the object.
        step_bytes: int64[files], from one sample's value to the next.
    """

    recipe: FieldRecipe
    at: NDArray[np.int64]
    step_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GatherTask:
    """Batches of numbers to copy into slots of an attached arena. All rows of a batch have all columns.

    Attributes:
        file_no: int64[rows], which of the task's files.
        ordinal: int64[rows], sample in the file.
        batch_ends: int64[batches], the row behind the last row of each batch.
        out_at: int64[batches, columns], offset in the arena of the batch's values, which are back to back.
        are_firsts: ``file_no`` and ``ordinal`` tell only the first row of each batch. The others follow in its file.
        in_order: the batches lie in one slot, one behind the other. Until they are copied, ``file_no`` and ``ordinal``
            may lie in their place.
    """

    files: tuple[ShardFile, ...]
    arena_id: int
    columns: tuple[Column, ...]
    file_no: NDArray[np.integer]
    ordinal: NDArray[np.int64]
    batch_ends: NDArray[np.int64]
    out_at: NDArray[np.int64]
    are_firsts: bool = False
    in_order: bool = False


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that could not be decoded, the first field that failed, and why. Its place in the slot holds garbage."""

    row: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Result of a task.

    Attributes:
        bad: bad rows, in order of rows.
        busy_s: seconds that workers spent on the task, summed over workers.
    """

    bad: tuple[BadRow, ...]
    busy_s: float
