"""Decides which worker does which rows next, and reschedules the rows of a dead worker. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable  # noqa: TC003 - of a dataclass
from dataclasses import dataclass, field
from typing import Final

DEPTH: Final = 4
"""Chunks that a worker holds, 45 to 125 ms each for photographs: a busy event loop (p99 of 100 ms) idles no worker."""

_SPREAD_ROWS_LEAST: Final = 8  # a message with fewer rows and fewer bytes is not worth its cost
_SPREAD_BYTES_LEAST: Final = 8 << 20
_OWNERS_MAX: Final = 1024
_QUANTUM_S: Final = 0.1
"""How much more time an owner may take than another that waits: about one chunk of photographs."""

_EXCUSES: Final = 256
"""Maximum restarts before a suspect's start: more workers than could die at the same moment, so that retries end."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of the pool as the schedule sees it. It is over when no chunk waits or runs.

    Attributes:
        stream: the stream of the call; streams take turns.
        owner: who is charged for the call's time; None: nobody.
        alone: each chunk takes long, so a worker that holds one gets no further chunks.
    """

    stream: int = 0
    alone: bool = field(default=False, kw_only=True)
    owner: Hashable = field(default=None, kw_only=True)
    waiting_count: int = 0
    running_count: int = 0

    @property
    def over(self) -> bool:
        """Whether no chunk is left to do."""
        return not self.waiting_count and not self.running_count


@dataclass(eq=False, slots=True)
class Chunk:
    """Some rows of a call.

    Attributes:
        suspect: a single row that was running when its worker died; if that happens again, the row is given up.
        id: set when the chunk is sent; answers repeat it.
        started: a worker reported that it begins this suspect. Workers that are killed together, for lack of memory or
            by a person, die before they begin the others' suspects. Such deaths do not count against the row.
        excuses_left: number of further workers that may die before they begin the chunk.
    """

    call: Call
    rows: range
    suspect: bool = False
    id: int = 0
    started: bool = False
    excuses_left: int = _EXCUSES


@dataclass(slots=True)
class _Worker:
    chunks: deque[Chunk] = field(default_factory=deque)  # in the order they were sent; the first is running
    resting: bool = False

    @property
    def engaged(self) -> bool:
        """Whether the worker holds a long chunk, which is always the last one sent."""
        return bool(self.chunks) and self.chunks[-1].call.alone


class Schedule:
    """Assigns chunks to workers that answer in order; streams take turns, one call each.

    Because streams take turns, a session that requests all its batches at once does not delay the first batch of
    another session. Within a stream, calls are served in the order they came.

    Between several owners, time counts, not calls: the streams of an owner whose chunks took more time than those of
    another waiting owner are passed over until the other has caught up. An owner that had nothing to do starts level.

    A worker holds at most ``depth`` chunks. It works on one while the others wait in its socket, so that it never idles
    for a round trip. Long chunks leave one worker free for other work, if there are two. A worker's death is blamed on
    its running chunk. This chunk is replayed row by row, and a row that the next worker had begun when it died is given
    up. So a row kills at most two workers. A binary search would kill six for a chunk of 32 rows, or wait for six
    deadlines if the row hangs.
    """

    def __init__(self, depth: int = 2) -> None:
        self._waiting: dict[int, deque[Chunk]] = {}  # by stream, none empty; the first stream has the next turn
        self._workers: dict[int, _Worker] = {}
        # Workers with room, by number of chunks held: checking every worker per chunk would cost more than sending it.
        self._free_workers: list[dict[int, None]] = [{} for _ in range(depth)]
        self._waiting_count = 0
        self._busy_count = 0
        self._engaged_count = 0  # long chunks; a worker holds at most one
        self._resting_count = 0  # workers that get no more chunks
        self._last_id = 0
        self._spent_s: dict[Hashable, float] = {}  # busy time by owner

    @property
    def busy_count(self) -> int:
        """Number of workers that have a chunk."""
        return self._busy_count

    @property
    def unassigned_count(self) -> int:
        """Number of chunks that no worker holds."""
        return sum(map(len, self._waiting.values()))

    @property
    def queued(self) -> bool:
        """Whether any chunk waits, in a queue or in a worker's socket."""
        return self._waiting_count > self._busy_count or bool(self._waiting)

    def submit(self, call: Call, rows: int, chunk_rows: int) -> None:
        """Append ``rows`` rows of ``call`` in chunks of ``chunk_rows``."""
        self._enter(call.owner)
        for start in range(0, rows, chunk_rows):
            self._waiting.setdefault(call.stream, deque()).append(
                Chunk(call, range(start, min(start + chunk_rows, rows)))
            )
            call.waiting_count += 1

    def join(self, worker: int) -> None:
        """Assign chunks to ``worker`` from now on."""
        self._workers[worker] = _Worker()
        self._free_workers[0][worker] = None

    def rest(self, worker: int) -> None:
        """Assign no more chunks to ``worker``; it finishes the chunks that it holds."""
        held = self._workers[worker]
        self._full_workers(worker, len(held.chunks))
        self._resting_count += not held.resting
        held.resting = True

    def assign(self) -> tuple[int, Chunk] | None:
        """Assign the next chunk to the worker with the fewest; None if no chunk waits or all workers are full."""
        free = next((workers for workers in self._free_workers if workers), None)
        chunk = None if free is None else self._next()
        if free is None or chunk is None:
            return None
        worker = next(iter(free))
        self._last_id += 1
        chunk.id = self._last_id
        chunk.started = False
        chunk.call.waiting_count -= 1
        chunk.call.running_count += 1
        self._workers[worker].chunks.append(chunk)
        self._engaged_count += chunk.call.alone
        self._moved(worker, 1)
        return worker, chunk

    def take_back(self, worker: int) -> None:
        """Undo the last assignment to ``worker``, and drop the chunk."""
        chunk = self._workers[worker].chunks.pop()
        chunk.call.running_count -= 1
        self._engaged_count -= chunk.call.alone
        self._moved(worker, -1)

    def put_back(self, worker: int, chunk: Chunk) -> None:
        """Undo the last assignment to ``worker``, which was ``chunk``; the chunk is the first in line."""
        self.take_back(worker)
        self._put_first([chunk])

    def divide(self, chunk: Chunk) -> None:
        """Queue the halves of a chunk that was taken back, first in line, because its request was too large."""
        middle = (chunk.rows.start + chunk.rows.stop) // 2
        halves = (range(chunk.rows.start, middle), range(middle, chunk.rows.stop))
        self._put_first([Chunk(chunk.call, rows, chunk.suspect) for rows in halves])

    def running(self, worker: int) -> Chunk | None:
        """Return the chunk that ``worker`` is running, or None."""
        held = self._workers.get(worker)
        return held.chunks[0] if held and held.chunks else None

    def finish(self, worker: int, busy_s: float = 0.0) -> Chunk:
        """Record the answer to the chunk that ``worker`` was running, and how long it took; return the chunk."""
        chunk = self._workers[worker].chunks.popleft()
        self.charge(chunk.call, busy_s)
        chunk.call.running_count -= 1
        self._engaged_count -= chunk.call.alone
        self._moved(worker, -1)
        return chunk

    def charge(self, call: Call, busy_s: float) -> None:
        """Charge the owner of a call for time of a worker."""
        if call.owner in self._spent_s:
            self._spent_s[call.owner] += busy_s

    def holders(self, call: Call) -> list[int]:
        """Return the workers that hold a chunk of ``call``."""
        return [name for name, held in self._workers.items() if any(chunk.call is call for chunk in held.chunks)]

    def withdraw(self, call: Call) -> None:
        """Drop the waiting chunks of ``call``; the running ones finish."""
        left = deque(chunk for chunk in self._waiting.pop(call.stream, ()) if chunk.call is not call)
        if left:
            self._waiting[call.stream] = left
        call.waiting_count = 0

    def leave(self, worker: int, *, withdrawn: set[Call]) -> tuple[list[Chunk], set[Call]]:
        """Requeue the chunks of a dead ``worker``, first in line.

        Args:
            worker: number of the worker.
            withdrawn: calls whose chunks are dropped instead.

        Returns:
            Chunks given up (suspects that killed a second worker), and all calls of the worker's chunks.
        """
        gone = self._workers.pop(worker, _Worker())
        held = gone.chunks
        self._resting_count -= gone.resting
        self._full_workers(worker, len(held))
        self._waiting_count -= len(held)
        self._busy_count -= bool(held)
        self._engaged_count -= sum(chunk.call.alone for chunk in held)
        given_up: list[Chunk] = []
        again: list[Chunk] = []
        for position, chunk in enumerate(held):
            chunk.call.running_count -= 1
            if chunk.call in withdrawn:
                continue
            if position:
                again.append(chunk)  # the chunk had not started
            elif chunk.suspect and (chunk.started or not chunk.excuses_left):
                given_up.append(chunk)
            elif chunk.suspect:
                chunk.excuses_left -= 1
                again.append(chunk)
            else:
                again.extend(Chunk(chunk.call, range(row, row + 1), suspect=True) for row in chunk.rows)
        self._put_first(again)
        return given_up, {chunk.call for chunk in held}

    def _enter(self, owner: Hashable) -> None:
        """Let an owner that had nothing to do start level with the busy owner that has spent least."""
        if owner is None or (owner in self._spent_s and len(self._spent_s) == 1):
            return
        busy = {queue[0].call.owner for queue in self._waiting.values()}
        busy |= {chunk.call.owner for held in self._workers.values() for chunk in held.chunks}
        if owner in busy:
            return
        level_s = min((self._spent_s[one] for one in busy if one is not None), default=0.0)
        self._spent_s[owner] = max(self._spent_s.get(owner, 0.0), level_s)
        if len(self._spent_s) > _OWNERS_MAX:
            self._spent_s = {one: self._spent_s[one] for one in (*busy, owner) if one is not None}

    def _limit_s(self) -> float:
        """Return the time above which an owner has to wait for others."""
        if len(self._spent_s) < 2:
            return math.inf
        owners = {queue[0].call.owner for queue in self._waiting.values()} - {None}
        return min((self._spent_s[owner] for owner in owners), default=math.inf) + _QUANTUM_S

    def _moved(self, worker: int, by: int) -> None:
        """Update the counts after ``worker`` got one chunk more or less (``by``)."""
        held = self._workers[worker]
        now = len(held.chunks)
        self._waiting_count += by
        self._busy_count += (now > 0) - (now - by > 0)
        if held.resting:
            return
        self._full_workers(worker, now - by)
        if now < len(self._free_workers) and not held.engaged:
            self._free_workers[now][worker] = None

    def _full_workers(self, worker: int, chunk_count: int) -> None:
        if chunk_count < len(self._free_workers):
            self._free_workers[chunk_count].pop(worker, None)

    def _next(self) -> Chunk | None:
        """Take the next chunk. The turn passes to the next stream when all chunks of its call are taken."""
        spare = len(self._workers) - self._resting_count - self._engaged_count != 1 or not self._engaged_count
        limit_s = self._limit_s()
        turns = (
            (stream, queue)
            for stream, queue in self._waiting.items()
            if (spare or not queue[0].call.alone) and self._spent_s.get(queue[0].call.owner, 0.0) <= limit_s
        )
        stream, queue = next(turns, (0, None))
        if queue is None:
            return None
        chunk = queue.popleft()
        if not queue:
            del self._waiting[stream]
        elif queue[0].call is not chunk.call:
            self._waiting[stream] = self._waiting.pop(stream)
        return chunk

    def _put_first(self, chunks: list[Chunk]) -> None:
        for chunk in reversed(chunks):
            queue = self._waiting.pop(chunk.call.stream, deque())
            queue.appendleft(chunk)
            self._waiting = {chunk.call.stream: queue, **self._waiting}
            chunk.call.waiting_count += 1


def spread(schedule: Schedule, worker_count: int, rows: int, chunk_rows: int, row_bytes: int = 0) -> int:
    """Return how many rows to send per message, fewer than ``chunk_rows`` if workers would otherwise idle.

    Args:
        schedule: knows which workers are busy.
        worker_count: number of workers.
        rows: rows of the call.
        chunk_rows: most rows of a message.
        row_bytes: mean bytes of a row's data. A message with a few large rows is worth its cost.
    """
    idle = 0 if schedule.queued else worker_count - schedule.busy_count
    least = min(_SPREAD_ROWS_LEAST, chunk_rows, _SPREAD_BYTES_LEAST // max(row_bytes, 1) + 1)
    return max(-(-rows // idle), least) if idle * chunk_rows > rows else chunk_rows


_HELD_S: Final = 0.125  # a cancelled decode waits for the chunks that workers hold: up to four of this length
_WORTH_S: Final = 0.01  # of a worker's time: a message with less work costs the daemon as much as it saves
_TIMES_MAX: Final = 8  # times the configured rows: an answer that names all bad rows must fit one packet


class ChunkSizer:
    """Chooses rows per message from the time that earlier rows of the same arena took.

    Args:
        rows: default number of rows, used if nothing is known, and as the minimum if rows take long.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._took_s: dict[int, float] = {}  # arena id -> seconds per row

    def of(self, arena_id: int, rows: int, workers: int) -> int:
        """Return how many rows of an arena's next batch to send per message, in equal parts.

        Args:
            arena_id: the arena.
            rows: rows of the batch.
            workers: number of workers. If rows are quick, each worker gets a part; very quick batches go to one worker.
        """
        most, took_s = self._rows, self._took_s.get(arena_id)
        if took_s is not None:
            took_s = max(took_s, 1e-9)
            wanted = max(2 * self._rows, -(-rows // max(workers, 1)), int(min(_WORTH_S / took_s, rows)))
            most = max(self._rows, min(wanted, int(_HELD_S / took_s), _TIMES_MAX * self._rows))
        return equal_part(rows, most)

    def took(self, arena_id: int, rows: int, busy_s: float) -> None:
        """Record the busy time of a batch of at least one row, summed over workers."""
        self._took_s[arena_id] = busy_s / rows

    def forget(self, arena_id: int) -> None:
        """Forget an arena that no longer exists; unknown ids are ignored."""
        self._took_s.pop(arena_id, None)


def equal_part(rows: int, most: int) -> int:
    """Return how many of ``rows`` to send per message, at most ``most``, so that few messages are equally large."""
    return -(-rows // max(-(-rows // most), 1))
