"""Which worker does which rows next, and what becomes of the rows of a worker that died. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


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
    """

    call: Call
    rows: range
    suspect: bool = False
    id: int = 0


@dataclass(slots=True)
class _Worker:
    chunks: deque[Chunk] = field(default_factory=deque)  # sent, in order; the first is running

    @property
    def engaged(self) -> bool:
        """Whether it holds a chunk that takes long: always the last one sent."""
        return bool(self.chunks) and self.chunks[-1].call.alone


class Schedule:
    """Streams take turns, one call each, over workers that answer in order.

    So a session that asks for all its batches at once does not make another wait for the last of them before its
    first. Within a stream: first come, first served.

    A worker holds ``depth`` chunks at most: one it works on, the others wait in its socket, so that it never idles
    for a round trip. A worker's death is blamed on the chunk it was running: that is replayed row by row, and a row
    during which a worker dies again is given up. So every row can take at most two workers with it.
    """

    def __init__(self, depth: int = 2) -> None:
        self._depth = depth
        self._waiting: dict[int, deque[Chunk]] = {}  # of each stream, none empty; the first one's turn is next
        self._workers: dict[int, _Worker] = {}
        self._last_id = 0

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

    def assign(self) -> tuple[int, Chunk] | None:
        """Hand the next chunk to the worker that holds the fewest; None where nothing waits or all are full."""
        if not self._waiting:
            return None
        open_to_more = [name for name, held in self._workers.items() if not held.engaged]
        if not open_to_more:
            return None
        worker = min(open_to_more, key=lambda name: len(self._workers[name].chunks))
        if len(self._workers[worker].chunks) >= self._depth:
            return None
        chunk = self._next()
        self._last_id += 1
        chunk.id = self._last_id
        chunk.call.waiting_count -= 1
        chunk.call.running_count += 1
        self._workers[worker].chunks.append(chunk)
        return worker, chunk

    def take_back(self, worker: int) -> None:
        """Undo the last assignment to ``worker``; the chunk is forgotten."""
        self._workers[worker].chunks.pop().call.running_count -= 1

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
        held = self._workers.pop(worker, _Worker()).chunks
        given_up: list[Chunk] = []
        again: list[Chunk] = []
        for position, chunk in enumerate(held):
            chunk.call.running_count -= 1
            if chunk.call in withdrawn:
                continue
            if position:
                again.append(chunk)  # it never started
            elif chunk.suspect:
                given_up.append(chunk)
            else:
                again.extend(Chunk(chunk.call, range(row, row + 1), suspect=True) for row in chunk.rows)
        self._put_first(again)
        return given_up, {chunk.call for chunk in held}

    def _next(self) -> Chunk:
        """Take the next chunk; the turn passes on when all of its call is taken."""
        stream, queue = next(iter(self._waiting.items()))
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
