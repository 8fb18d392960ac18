"""What the pool is asked to do, and what it answers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feedd.values import ByteRange, FieldRecipe, ShardFile


CHUNK_ROWS_MAX: Final = 64
"""A worker's answer names each bad row with its reason, and must fit one packet."""


RECYCLE_GROWTH_BYTES: Final = 512 << 20
"""Eight times what a codec keeps for the largest image. Reached by what leaks, or by memory that samples far beyond
the others have left torn: a new process costs 0.3 s of one core then, and no supply."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How the pool runs.

    Attributes:
        workers: processes, >= 1; where ``workers_max`` is more, the fewest.
        workers_max: most processes; between the two demand decides. 0: ``workers``, always.
        cpus: cores the workers may run on; empty: those of this process.
        recycle_growth_bytes: memory of its own by which a worker may grow before another takes its place; 0: any.
        task_deadline_s: a worker that spends longer on one chunk is killed and the chunk replayed.
        nice: niceness of the workers; 0 leaves it.
        chunk_rows: rows a worker is sent at once; small enough to balance, large enough to amortise a message. Up to
            eight times as many where rows are quick (see ``portions``).
        start_deadline_s: from starting a worker to its hello.
        cancel_grace_s: how long a cancelled decode waits for its running chunks before it kills their workers.
        close_grace_s: how long idle workers get to leave at close.
        command: the worker's command line; descriptor and parent's pid are appended.
    """

    workers: int = 1
    workers_max: int = 0
    cpus: tuple[int, ...] = ()
    recycle_growth_bytes: int = RECYCLE_GROWTH_BYTES
    task_deadline_s: float = 60.0
    nice: int = 0
    chunk_rows: int = 32
    start_deadline_s: float = 60.0
    cancel_grace_s: float = 5.0
    close_grace_s: float = 5.0
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
        size: int64[rows], bytes; -1 where the sample lacks the field: the row is then reported bad.
        out_at: int64[rows], where to decode to, in bytes from the slot's start. Not used by ``measure``.
        shape: int64[rows, ndim] of the decoded value where the field is not DENSE, else None. A row of -1 (what
            ``measure`` gives for what it cannot measure) makes decode report the row with the reason.
        dims: shape of each row, where the recipe says ``pad``.
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
    """What was decoded of a span of rows so that they could be measured.

    Attributes:
        rows: whose.
        values: back to back, none of rows that cannot be measured.
    """

    rows: range
    values: NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """One batch: all fields of all rows, into one slot of one attached arena.

    Attributes:
        slot_at: the slot's first byte in the arena.
        seeds: uint64[rows], all that augmentation depends on.
    """

    files: tuple[ShardFile, ...]
    arena_id: int
    slot_at: int
    fields: tuple[FieldWork, ...]
    seeds: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MakeTask:
    """One shard to be made of an object.

    Attributes:
        form: name, or name and parameters.
        url: of the object.
        size_bytes: of the object.
        spans: what is here of it, in order.
        source_fd: file that holds the object, as long as that; only ``spans`` of it are true.
        out_fd: file to write to.
        out_at: offset of the shard's first byte in it.
        limit_bytes: most bytes it may have.
        room_bytes: most bytes of memory there are for it, and for what making it takes.
        entry_bytes: what is behind so many bytes of it is counted, and not written; below zero: all is written.
    """

    form: str
    url: str
    size_bytes: int
    spans: tuple[ByteRange, ...]
    source_fd: int
    out_fd: int
    out_at: int
    limit_bytes: int
    room_bytes: int
    entry_bytes: int = -1


@dataclass(frozen=True, slots=True)
class MadeShard:
    """A shard that was made.

    Attributes:
        size_bytes: its length.
        format_name: of the format by which it is indexed.
        busy_s: time a worker spent on it.
    """

    size_bytes: int
    format_name: str
    busy_s: float


@dataclass(frozen=True, slots=True, order=True)
class BadRow:
    """A row that could not be decoded, the first field that failed, and why. Its place in the slot holds garbage."""

    row: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """What became of a task.

    Attributes:
        bad: in order of rows.
        busy_s: time workers spent on it, summed over workers.
    """

    bad: tuple[BadRow, ...]
    busy_s: float
