"""Which worker does which rows next, and what becomes of the rows of a worker that died. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

_EXCUSES: Final = 256
"""More than a node has workers that could die at the same moment; something must end what never begins."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of the pool as the schedule sees it. It is over when no chunk waits or runs.

    Attributes:
        stream: whom it is for; streams take turns.
        alone: each of its chunks takes long: nothing is sent to a worker that holds one, not to wait behind it.
    """

    stream: int = 0
    alone: bool = field(default=False, kw_only=True)
    waiting_count: int = 0
    running_count: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to do."""
        return not self.waiting_count and not self.running_count


@dataclass(eq=False, slots=True)
class Chunk:
    """Some rows of a call.

    Attributes:
        suspect: a single row that was running when its worker died: if that happens again, the row did it.
        id: set when it is sent; answers repeat it.
        begun: a worker said that it begins this suspect. Workers that die together, of a node without memory or of an
            impatient hand, do so before they read what the others leave: that is not the row's doing.
        excuses_left: how many more workers may die with it before they begin it.
    """

    call: Call
    rows: range
    suspect: bool = False
    id: int = 0
    begun: bool = False
    excuses_left: int = _EXCUSES


@dataclass(slots=True)
class _Worker:
    chunks: deque[Chunk] = field(default_factory=deque)  # sent, in order; the first is running
    resting: bool = False

    @property
    def engaged(self) -> bool:
        """Whether it holds a chunk that takes long: always the last one sent."""
        return bool(self.chunks) and self.chunks[-1].call.alone


class Schedule:
    """Streams take turns, one call each, over workers that answer in order.

    So a session that asks for all its batches at once does not make another wait for the last of them before its
    first. Within a stream: first come, first served.

    A worker holds ``depth`` chunks at most: one it works on, the others wait in its socket, so that it never idles
    for a round trip. Chunks that take long leave one worker to the others, if there are two. A worker's death is
    blamed on the chunk it was running: that is replayed row by row, and a row that the next one had begun when it died
    is given up. So every row can take at most two workers with it, where looking for it by halves would take six of 32
    rows, or six deadlines of one that hangs.
    """

    def __init__(self, depth: int = 2) -> None:
        self._waiting: dict[int, deque[Chunk]] = {}  # of each stream, none empty; the first one's turn is next
        self._workers: dict[int, _Worker] = {}
        # Workers with room by how many chunks they hold: looking at each for every chunk costs more than sending it.
        self._with_room: list[dict[int, None]] = [{} for _ in range(depth)]
        self._held_count = 0
        self._busy_count = 0
        self._engaged_count = 0  # chunks that take long; a worker holds at most one
        self._resting_count = 0  # workers that get nothing more
        self._last_id = 0

    @property
    def busy_count(self) -> int:
        """Workers that have something to do."""
        return self._busy_count

    @property
    def queued(self) -> bool:
        """Whether work waits behind work."""
        return self._held_count > self._busy_count or bool(self._waiting)

    def submit(self, call: Call, rows: int, chunk_rows: int) -> None:
        """Append ``rows`` rows of ``call`` in chunks of ``chunk_rows``."""
        for start in range(0, rows, chunk_rows):
            self._waiting.setdefault(call.stream, deque()).append(
                Chunk(call, range(start, min(start + chunk_rows, rows)))
            )
            call.waiting_count += 1

    def join(self, worker: int) -> None:
        """Give ``worker`` work from now on."""
        self._workers[worker] = _Worker()
        self._with_room[0][worker] = None

    def rest(self, worker: int) -> None:
        """Give ``worker`` no more work; it finishes what it holds."""
        held = self._workers[worker]
        self._without_room(worker, len(held.chunks))
        self._resting_count += not held.resting
        held.resting = True

    def assign(self) -> tuple[int, Chunk] | None:
        """Hand the next chunk to the worker that holds the fewest; None where nothing waits or all are full."""
        free = next((workers for workers in self._with_room if workers), None)
        chunk = None if free is None else self._next()
        if free is None or chunk is None:
            return None
        worker = next(iter(free))
        self._last_id += 1
        chunk.id = self._last_id
        chunk.begun = False
        chunk.call.waiting_count -= 1
        chunk.call.running_count += 1
        self._workers[worker].chunks.append(chunk)
        self._engaged_count += chunk.call.alone
        self._moved(worker, 1)
        return worker, chunk

    def take_back(self, worker: int) -> None:
        """Undo the last assignment to ``worker``; the chunk is forgotten."""
        chunk = self._workers[worker].chunks.pop()
        chunk.call.running_count -= 1
        self._engaged_count -= chunk.call.alone
        self._moved(worker, -1)

    def divide(self, chunk: Chunk) -> None:
        """Queue the halves of a chunk taken back, first in line: its request was too large."""
        middle = (chunk.rows.start + chunk.rows.stop) // 2
        halves = (range(chunk.rows.start, middle), range(middle, chunk.rows.stop))
        self._put_first([Chunk(chunk.call, rows, chunk.suspect) for rows in halves])

    def running(self, worker: int) -> Chunk | None:
        """Return what ``worker`` is working on."""
        held = self._workers.get(worker)
        return held.chunks[0] if held and held.chunks else None

    def finish(self, worker: int) -> Chunk:
        """Take note of the answer to the chunk that ``worker`` was running, and return it."""
        chunk = self._workers[worker].chunks.popleft()
        chunk.call.running_count -= 1
        self._engaged_count -= chunk.call.alone
        self._moved(worker, -1)
        return chunk

    def holders(self, call: Call) -> list[int]:
        """Return the workers that hold a chunk of ``call``."""
        return [name for name, held in self._workers.items() if any(chunk.call is call for chunk in held.chunks)]

    def withdraw(self, call: Call) -> None:
        """Forget the waiting chunks of ``call``; the running ones finish."""
        left = deque(chunk for chunk in self._waiting.pop(call.stream, ()) if chunk.call is not call)
        if left:
            self._waiting[call.stream] = left
        call.waiting_count = 0

    def leave(self, worker: int, *, withdrawn: set[Call]) -> tuple[list[Chunk], set[Call]]:
        """Requeue what a dead ``worker`` held, first in line.

        Args:
            worker: its name.
            withdrawn: calls whose chunks are dropped instead.

        Returns:
            Chunks given up (suspects that killed a second worker), and all calls concerned.
        """
        gone = self._workers.pop(worker, _Worker())
        held = gone.chunks
        self._resting_count -= gone.resting
        self._without_room(worker, len(held))
        self._held_count -= len(held)
        self._busy_count -= bool(held)
        self._engaged_count -= sum(chunk.call.alone for chunk in held)
        given_up: list[Chunk] = []
        again: list[Chunk] = []
        for position, chunk in enumerate(held):
            chunk.call.running_count -= 1
            if chunk.call in withdrawn:
                continue
            if position:
                again.append(chunk)  # it never started
            elif chunk.suspect and (chunk.begun or not chunk.excuses_left):
                given_up.append(chunk)
            elif chunk.suspect:
                chunk.excuses_left -= 1
                again.append(chunk)
            else:
                again.extend(Chunk(chunk.call, range(row, row + 1), suspect=True) for row in chunk.rows)
        self._put_first(again)
        return given_up, {chunk.call for chunk in held}

    def _moved(self, worker: int, by: int) -> None:
        """Keep the books after ``worker`` got a chunk more, or has one less."""
        held = self._workers[worker]
        now = len(held.chunks)
        self._held_count += by
        self._busy_count += (now > 0) - (now - by > 0)
        if held.resting:
            return
        self._without_room(worker, now - by)
        if now < len(self._with_room) and not held.engaged:
            self._with_room[now][worker] = None

    def _without_room(self, worker: int, chunk_count: int) -> None:
        if chunk_count < len(self._with_room):
            self._with_room[chunk_count].pop(worker, None)

    def _next(self) -> Chunk | None:
        """Take the next chunk; the turn passes on when all of its call is taken."""
        spare = len(self._workers) - self._resting_count - self._engaged_count != 1 or not self._engaged_count
        turns = ((stream, queue) for stream, queue in self._waiting.items() if spare or not queue[0].call.alone)
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
