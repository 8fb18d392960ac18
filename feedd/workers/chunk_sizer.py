"""Chooses how many rows to send to a worker per message. Pure bookkeeping.

Each message costs the daemon about 0.5 ms, whatever its size. It costs a third of that if the daemon is otherwise idle
and its code stays in the processor's cache. For photographs that take a worker 0.65 ms each, a photograph costs 20 us
in messages of 32 rows, 14 us of 64, and 12 us of 128. For tiny images (10 us), two workers decode 1.2 times as many
with 256 rows as with 64. Rows that take long are sent in small messages, because a worker that is killed or asked to
stop loses less work then.
"""

from __future__ import annotations

from typing import Final

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
