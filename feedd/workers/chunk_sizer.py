"""How many rows a worker is sent at once. Pure bookkeeping.

Each message costs the daemon about half a millisecond whatever it says, a third of that where it has nothing else to do
and its code stays in the processor's cache. Measured, per photograph that costs a worker 0.65 ms: 20 us in messages of
32, 14 of 64, 12 of 128; and where pictures are tiny (10 us), two workers decode 1.2 times as many 256 at a time as 64.
But rows that take long are sent few at a time: a worker that is killed, or asked to stop, has that much to lose.
"""

from __future__ import annotations

from typing import Final

_HELD_S: Final = 0.125  # a decode that is cancelled waits for what workers were sent: up to four of these
_WORTH_S: Final = 0.01  # of a worker's time: a message that asks for less costs the daemon as much as it saves
_TIMES_MAX: Final = 8  # as many as asked for: an answer that names bad rows must fit one packet


class ChunkSizer:
    """Rows per message, by what rows of the same arena took before.

    Args:
        rows: so many where nothing is known, and where rows take long.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._took_s: dict[int, float] = {}  # a row, by arena

    def of(self, arena_id: int, rows: int, workers: int) -> int:
        """Return how many rows of an arena's next batch to send at once: in equal parts.

        Args:
            arena_id: the arena.
            rows: of the batch.
            workers: among whom: where rows are quick each gets a part, and one alone gets all that is worth nothing
                divided.
        """
        most, took_s = self._rows, self._took_s.get(arena_id)
        if took_s is not None:
            took_s = max(took_s, 1e-9)
            wanted = max(2 * self._rows, -(-rows // max(workers, 1)), int(min(_WORTH_S / took_s, rows)))
            most = max(self._rows, min(wanted, int(_HELD_S / took_s), _TIMES_MAX * self._rows))
        return equal_part(rows, most)

    def took(self, arena_id: int, rows: int, busy_s: float) -> None:
        """Note what a batch of one row or more took, summed over workers."""
        self._took_s[arena_id] = busy_s / rows

    def forget(self, arena_id: int) -> None:
        """Take note that there is no such arena any more; unknown ones are ignored."""
        self._took_s.pop(arena_id, None)


def equal_part(rows: int, most: int) -> int:
    """Return how many of ``rows`` to send at once, ``most`` or fewer, so that as few messages have the same to do."""
    return -(-rows // max(-(-rows // most), 1))
